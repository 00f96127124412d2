"""Sizes in captured graphs: expressions, decisions, sentences."""

import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._sympy.functions import FloorDiv, Mod

import qtool
from qtool.core.errors import CaptureError
from qtool.frontends.torch.exported_program import load_program
from qtool.frontends.torch.shape_decisions import condition_sentence
from qtool.frontends.torch.size_expressions import is_size_expression
from tests.passes.differential import Function

S, T = sympy.symbols("s0 s1", integer=True, positive=True)
CASES = {
    "blocks": (sympy.Eq(FloorDiv(S, 32), 20), "(time // 32) == 20"),
    "multiples": (sympy.Eq(Mod(S, 2), 0), "(time % 2) == 0"),
    "one": (sympy.Eq(S, 8), "time == 8"),
    "at most": (S <= 100, "time <= 100"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_condition_on_one_size(name: str) -> None:
    condition, formula = CASES[name]
    graph = qtool.capture_model(Function(lambda x: x + 1).eval(), torch.zeros(2, 640)).graph
    graph.dims = {"s0": "time", "s1": "batch"}
    graph.inputs = (type(graph.inputs[0])("x", "float32", ("batch", "time")),)
    place = "dimension 1 (time) of input 'x'"
    start = f"the file is correct only where {formula} ({place}): "
    assert condition_sentence(condition, graph).startswith(start)
    both = condition_sentence(sympy.Eq(S, 2 * T), graph)
    assert f"time == (2*batch) ({place}, dimension 0 (batch) of input 'x')" in both
    each = condition_sentence(sympy.And(condition, sympy.Ne(T, 3)), graph)
    assert each.startswith(f"{start[:-2]} and batch != 3 (dimension 0 (batch) of input 'x'): ")


SIZES = [
    *("s0", "2*s0 + 1", "Mul(Integer(2), Symbol('s0', positive=True, integer=True))"),
    *("Float('0.5', precision=53)", "FloorDiv(Add(s77, Integer(-1)), 2)", "Eq(Symbol('s0'), 3)"),
    "floor(s0/2)",
]
CODE = [
    *("__import__('os').system('touch x')", "S('1')", "Poly('x')", "Symbol('a; b')"),
    *("Symbol(open('x'))", "exec(1)", "s0.free_symbols", "[s0]", "lambda: 1", "f'{s0}'"),
    *("(" * 5000, "", 5),
]


@pytest.mark.parametrize("text", SIZES)
def test_arithmetic_is_a_size(text: str) -> None:
    assert is_size_expression(text)


@pytest.mark.parametrize("text", CODE)
def test_everything_else_is_none(text: object) -> None:
    assert not is_size_expression(text)


class Resized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 3, 2, ceil_mode=True)
        return y.reshape(x.shape[0], -1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    names = {i: torch.export.Dim(name) for i, name in ((0, "batch"), (2, "h"), (3, "w"))}
    example = (torch.randn(2, 3, 8, 10),)
    program = torch.export.export(Resized(), example, dynamic_shapes={"x": names})
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def changed(file: Path, old: str, new: str) -> Path:
    """Copy an archive with another text in its JSON."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(file.with_name("other.pt2"), "w") as to:
        for name in source.namelist():
            data = source.read(name)
            to.writestr(name, data.replace(old.encode(), new.encode(), 1))
    return file.with_name("other.pt2")


def test_what_torch_writes_is_read(file: Path) -> None:
    assert load_program(file).graph_signature.user_inputs == ("x",)


def test_code_in_a_file_does_not_run(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = json.dumps(f"__import__('os').system('touch {mark}')")
    with pytest.raises(CaptureError, match=r"has the size .* which is more than arithmetic"):
        load_program(changed(file, '"as_int": 2', f'"as_expr": {{"expr_str": {code}}}'))
    assert not mark.exists()


def test_damaged_json_is_refused(file: Path) -> None:
    with pytest.raises(CaptureError, match=r"other\.pt2 is damaged \(JSONDecodeError"):
        load_program(changed(file, '"as_int": 2', '"as_int": '))


SHAPE = (2, 8, 12)
BOTH = {"x": {0: "batch", 1: "time"}}
Make = Callable[[Tensor], Tensor]


def _wide(x: Tensor) -> int:
    return x.shape[1]


FIXED: dict[str, tuple[Make, str]] = {
    "half": (lambda x: x[:, int(_wide(x) / 2) :], "trunc"),
    "scaled": (lambda x: F.interpolate(x.mT, size=int(0.5 * _wide(x))), "trunc"),
    "a loop": (
        lambda x: torch.cat([x[:, i : i + 1] for i in range(_wide(x) // 4)], 1),
        "// 4",
    ),
}
DECIDED: dict[str, tuple[Make, str]] = {
    "even": (lambda x: x + 1 if _wide(x) % 2 == 0 else x, "time % 2"),
    "long": (lambda x: x + 1 if _wide(x) > 5 else x, "time > 5"),
}
FREE: dict[str, Make] = {
    "half": lambda x: x[:, _wide(x) // 2 :],
    "half rounded up": lambda x: x[:, math.ceil(_wide(x) / 2) - 1 :],
    "scaled": lambda x: F.interpolate(x.mT, scale_factor=0.5),
    "views": lambda x: x.reshape(x.shape[0], _wide(x), 3, 4).flatten(2),
    "another branch, the same values": lambda x: x + 1 if _wide(x) > 5 else 1 + x,
    "pairs, which other sizes have not": lambda x: x.reshape(x.shape[0], -1, 24),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_size_that_decides_alone_is_fixed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, condition = FIXED[name]
    graph = qtool.capture_model(Function(function).eval(), torch.randn(SHAPE), BOTH).graph
    assert graph.inputs[0].shape == ("batch", 8, 12)
    (sentence,) = graph.size_conditions
    assert sentence.startswith("dimension 1 (time) of input 'x' is fixed to 8: at time 4 ")
    assert condition in sentence
    assert "(dimension 1 (time) of input 'x'): the model branches on that" in sentence
    assert f"warning: {sentence}" in caplog.messages


@pytest.mark.parametrize("name", DECIDED)
def test_what_is_decided_is_said(name: str) -> None:
    function, condition = DECIDED[name]
    graph = qtool.capture_model(Function(function).eval(), torch.randn(SHAPE), BOTH).graph
    (note,) = graph.size_conditions
    assert note.startswith("the file is correct only where ")
    assert condition in note


@pytest.mark.parametrize("name", FREE)
def test_what_is_free_is_not_spoken_of(name: str) -> None:
    graph = qtool.capture_model(Function(FREE[name]).eval(), torch.randn(SHAPE), BOTH).graph
    assert graph.size_conditions == ()


def test_it_is_a_note_of_the_model() -> None:
    layer = nn.Linear(12, 4)
    x = torch.randn(SHAPE)
    model = Function(lambda x, layer: layer(FIXED["half"][0](x)), layer).eval()
    assert any(
        "only where" in n for n in qtool.quantize(model, [x], dynamic=BOTH, accuracy="fast").notes
    )
    swapped = Function(lambda x, layer: layer(DECIDED["even"][0](x.transpose(0, 1))), layer).eval()
    made = qtool.quantize(swapped, [x.transpose(0, 1)], accuracy="fast")
    assert any("(batch % 2) == 0 (dimension 0 (batch) of input 'x')" in n for n in made.notes)
