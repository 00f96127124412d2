"""The table of formats, runtimes, sessions, profiles and workarounds."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends import runtime as runtime_module
from qtool.backends.formats import format_of, is_model, open_file, open_model
from qtool.backends.onnx.export.workarounds import ONNX_WORKAROUNDS
from qtool.backends.profiles import profile, profile_names
from qtool.backends.runtime import Workaround, apply_workarounds
from qtool.backends.runtimes import RUNTIMES, runtime
from qtool.core.errors import FileError, KernelError, QtoolError
from qtool.core.types import INT8, UINT8
from qtool.planning.targets import TARGETS
from tests.backends.kernels.ort_session import params
from tests.needs import needs_litert


def test_a_target_whose_runtime_cannot_be_asked_has_none() -> None:
    assert runtime(None) is None
    with pytest.raises(KeyError):
        runtime("none such")


def test_every_runtime_that_a_target_names_is_there() -> None:
    named = {t.runtime for t in TARGETS.values()} - {None}
    assert named
    assert named <= set(RUNTIMES)


def test_every_format_of_a_target_has_a_writer() -> None:
    for target in TARGETS.values():
        for name in target.file.formats:
            assert name in format_of(name).names


def test_a_file_is_opened_by_its_contents(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"\0\0\0\0TFL3" + b"\0" * 8)
    assert is_model(other)
    assert is_model(Path("model.onnx"))
    assert not is_model(Path("calibration.safetensors"))
    with pytest.raises(FileError, match="no such file"):
        open_file(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("suffix", "runtime"),
    [(".onnx", "onnxruntime [0-9.]+"), pytest.param(".tflite", "LiteRT", marks=needs_litert)],
)
def test_a_file_has_ports_runs_and_is_timed(suffix: str, runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 5).eval(), torch.randn(4, 3)
    path = tmp_path / f"net{suffix}"
    qtool.capture_model(model, x).export_float(path)
    session = open_model(path)
    (port,), (output,) = session.inputs, session.outputs
    assert (port.type, output.type) == ("tensor(float)", "tensor(float)")
    assert port.shape[1:] == (3,)
    assert not isinstance(port.shape[0], int)
    (y,) = session.run([x.numpy()])
    np.testing.assert_allclose(y, model(x).detach().numpy(), atol=1e-5)
    assert session.seconds([x.numpy()], 3, itertools.count().__next__) == 1  # from look to look
    for fails in (
        lambda: session.run([np.ones((2, 7), np.float32)]),
        lambda: session.seconds([np.ones((2, 7), np.float32)], 1, lambda: 0.0),
    ):
        # LiteRT runs some files at other sizes, with wrong results: qtool does not let it
        with pytest.raises(QtoolError, match=f"{runtime}|was written for|and the data has"):
            fails()


ROWS = [*ONNX_WORKAROUNDS, *(w for r in RUNTIMES.values() for w in r.workarounds)]
UPSTREAM = Path(__file__).parents[1] / "upstream"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_each_defect_is_reproduced_and_has_a_link(row: Workaround) -> None:
    file, _, function = row.reproduction.partition("::")
    assert f"def {function}(" in (UPSTREAM / file).read_text("utf-8")
    assert row.upstream.startswith("https://github.com/") or row.key == "skip-layer-norms"


@pytest.mark.parametrize(
    ("installed", "since", "fixed_in", "applied"),
    [
        ("1.31.1", "", "", True),
        ("1.31.1", "", "1.32", True),
        ("1.32.0", "", "1.32", False),
        ("1.100.0", "", "1.32", False),
        ("", "1.30", "1.32", True),
        ("1.30.0", "1.30", "", True),
        ("1.29.0", "1.30", "", False),
    ],
)
def test_it_depends_on_the_version(
    installed: str, since: str, fixed_in: str, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "version_of", lambda package: installed)
    rewrite = lambda model: model.append("rewritten")  # noqa: E731
    row = Workaround("k", "p", "why", rewrite, since, fixed_in)
    model: list[str] = []
    apply_workarounds(model, [row])
    assert bool(model) is applied


@pytest.mark.parametrize("name", profile_names())
def test_unknown_operator_names_profile_and_operator(name):
    with pytest.raises(KernelError, match=rf"profile {name} has no kernel for 'erf'"):
        profile(name).bind("erf")


def test_both_fully_connected_forms_have_a_name():
    older, newer = profile("tflite").binders, profile("tflite-2").binders
    assert older["linear"] is not newer["linear"]
    assert newer["linear"] is older["linear_float"]
    assert {k: v for k, v in older.items() if k != "linear"} == {
        k: v for k, v in newer.items() if k != "linear"
    }


@pytest.mark.parametrize(
    ("name", "op", "args", "kwargs", "message"),
    [
        ("tflite", "add", [params(INT8, 2.0**19), *[params(INT8, 1)] * 2], {}, "aborts"),
        ("tflite", "add", [params(INT8, 1), params(UINT8, 1), params(INT8, 1)], {}, "one type"),
        ("tflite", "relu", [params(INT8, 1)] * 2, {"bounds": (0, 3)}, "no RELU"),
        ("tflite", "sigmoid", [params(INT8, 1)] * 2, {}, "fixed output scale"),
        ("tflite", "softmax", [params(INT8, 1)] * 2, {}, "fixed output scale"),
        ("tflite", "hard_swish", [params(INT8, 128), params(INT8, 1)], {}, "larger output scale"),
        ("tflite", "quantize", [params(UINT8, [1.0, 2.0], 0, 0)], {}, "per-channel"),
        ("onnxruntime-x64", "max_pool", [params(UINT8, 1), params(UINT8, 2)],
         {"kernel": (2,), "stride": (1,)}, "share them"),
        ("onnxruntime-x64", "gelu", [params(UINT8, 1)] * 2, {"approximate": "tanh"}, "erf form"),
    ],
)  # fmt: skip
def test_binding_refuses_with_a_reason(name, op, args, kwargs, message):
    with pytest.raises(KernelError, match=message):
        profile(name).bind(op, *args, **kwargs)
