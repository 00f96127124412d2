"""Loops that do not end are refused, or end at the deadline."""

from pathlib import Path

import onnx
import pytest

from qtool.backends.onnx import loops
from qtool.backends.onnx.loops import endless_loop
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.onnx.onnx_file import capture_onnx
from tests.frontends.onnx.files import behind_conv, images, loaded

HUGE = "n = Constant <value = int64 {4611686018427387904}> ()"
FEW = "n = Constant <value_int = 3> ()"
TRUE = "c = Constant <value = bool {1}> ()"
FALSE = "c = Constant <value = bool {0}> ()"
KEEPS = "co = Identity (ci)"
COUNTS = "five = Constant <value_int = 5> () co = Less (i, five)"
ALWAYS = "yes = Constant <value = bool {1}> () co = Identity (yes)"


def _text(before: str, arguments: str, condition: str) -> str:
    return f"""{before} y0 = Loop ({arguments}, h) <body = step (int64 i, bool ci, float[N,4,8,8] a)
        => (bool co, float[N,4,8,8] o) {{ {condition} half = Constant <value_float = 0.5> ()
        o = Mul (a, half) }}>"""


LOOPS = {
    "a huge count": (_text(f"{HUGE} {TRUE}", "n, c", KEEPS), "runs 4,611,686,018,427,387,904 "),
    "a count alone": (_text(HUGE, "n, ", KEEPS), "runs 4,611,686,018,427,387,904 times"),
    "no count": (_text(TRUE, ", c", ALWAYS), "runs without end"),
    "neither": (_text("", ", ", KEEPS), "runs without end"),
    "few": (_text(f"{FEW} {TRUE}", "n, c", KEEPS), None),
    "a condition that ends it": (_text(f"{HUGE} {TRUE}", "n, c", COUNTS), None),
    "a condition that is false": (_text(f"{HUGE} {FALSE}", "n, c", KEEPS), None),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_says_that_it_has_no_end(name: str, tmp_path: Path) -> None:
    text, message = LOOPS[name]
    if message is None:
        loaded(behind_conv(text), tmp_path)
        return
    with pytest.raises(CaptureError, match=rf"\(Loop\) {message}"):
        loaded(behind_conv(text), tmp_path)


def test_a_loop_of_data_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "SECONDS", 0.5)
    count = """s = ReduceMax <keepdims = 0> (x) a = Abs (s) big = Constant <value_float = 1e18> ()
        m = Mul (a, big) n = Cast <to = 7> (m)"""
    model = loaded(behind_conv(_text(f"{count} {TRUE}", "n, c", KEEPS)), tmp_path)
    with pytest.raises(CaptureError, match=r"\(Loop\) has not ended after"):
        capture_onnx(model, Batch((images(2),)))


def test_damaged_numbers_are_left_to_other_checks() -> None:
    graph = onnx.parser.parse_graph("g (float[1] x) => (float[1] y) { y = Loop (n, c, x) }")
    graph.initializer.add(name="n", data_type=onnx.TensorProto.INT64, raw_data=b"123")
    graph.initializer.add(name="c", data_type=onnx.TensorProto.BOOL, dims=[2**40])
    assert endless_loop(graph) is None
