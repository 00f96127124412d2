"""Files in onnxruntime-web next to ONNX Runtime, where it is installed."""

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import qtool
from qtool.backends.formats import open_model, runtime_title
from qtool.core.errors import OptionError, VerificationError
from qtool.plugins.emulators.web.session import PROCESS, WebSession
from tests.evaluation.onnx_files import linear_file
from tests.needs import needs_web
from tests.plugins.emulators.networks import by_qtool

DTYPES = ("float32", "float64", "int64", "uint64", "int32", "uint32", "int8", "uint8", "bool")


def identity_file(path: Path, types: Sequence[str]) -> Path:
    """A file that returns its inputs, one of each type; the last axis has any size."""
    nodes, sides = [], ([], [])
    for name in types:
        nodes.append(helper.make_node("Identity", [name], [f"{name}_out"]))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(name))
        for side, end in zip(sides, ("", "_out"), strict=True):
            side.append(helper.make_tensor_value_info(name + end, kind, None))
    graph = helper.make_graph(nodes, "identity", *sides)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    return path


@needs_web
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4)])
def test_arrays_come_back_as_they_were_sent(shape: tuple[int, ...], tmp_path: Path) -> None:
    session = WebSession(identity_file(tmp_path / "identity.onnx", DTYPES))
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 2, shape).astype(name) for name in DTYPES]
    for made, sent in zip(session.run(arrays), arrays, strict=True):
        assert made.dtype == sent.dtype
        np.testing.assert_array_equal(made, sent)


@needs_web
def test_integer_kernels_give_the_same_bits(tmp_path: Path) -> None:
    file = by_qtool(tmp_path / "net.onnx", "onnxruntime")
    native, web = open_model(file), open_model(file, runtime="node")
    assert runtime_title("node").startswith("onnxruntime-web in node, version ")
    (image,) = native.inputs
    shape = [s if isinstance(s, int) else 4 for s in image.shape]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for made, expected in zip(web.run([x]), native.run([x]), strict=True):
        np.testing.assert_array_equal(made, expected)


@needs_web
def test_it_measures_its_own_time(tmp_path: Path) -> None:
    session = open_model(linear_file(tmp_path / "a.onnx", np.eye(3)), 1, "node")
    arrays = [np.ones((2, 3), np.float32)]
    assert session.seconds(arrays, 0, pytest.fail) < session.seconds(arrays, 1000, pytest.fail)


@needs_web
def test_files_are_evaluated_and_timed_there(tmp_path: Path) -> None:
    x = torch.randn(8, 3)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    file, plain = tmp_path / "model.onnx", tmp_path / "float.onnx"
    qtool.quantize(model, [x], accuracy="fast").export(file)
    qtool.capture_model(model, x).export_float(plain)
    here, web = (
        qtool.evaluate(file, model, [x], seconds=0.01, runtime=r) for r in ("onnxruntime", "node")
    )
    assert here.runtime == ""
    assert web.runtime.startswith("onnxruntime-web in node, version ")
    assert web.summary().text.endswith(web.runtime)
    assert web.accuracy.models[1].sqnr_db == pytest.approx(
        here.accuracy.models[1].sqnr_db, abs=1e-3
    )
    timed = qtool.bench([plain, file], [x], batch_sizes=(8,), seconds=0.01, runtime="node")
    assert timed.runtime == web.runtime
    assert timed.summary().text.startswith(f"in {web.runtime}, on ")


@needs_web
def test_what_onnxruntime_web_refuses_is_said(tmp_path: Path) -> None:
    file = linear_file(tmp_path / "a.onnx", np.eye(3))
    with pytest.raises(VerificationError, match=r"onnxruntime-web [\d.]+.*: .*[Dd]imension"):
        WebSession(file).run([np.ones((2, 4), np.float32)])
    with pytest.raises(OptionError, match="runs on one thread here"):
        WebSession(file, threads=2)


@needs_web
def test_a_process_that_ended_is_started_again(tmp_path: Path) -> None:
    file = linear_file(tmp_path / "a.onnx", np.eye(3))
    x = np.ones((1, 3), np.float32)
    old = WebSession(file)
    PROCESS.close()
    with pytest.raises(VerificationError, match="onnxruntime-web"):
        old.run([x])
    np.testing.assert_array_equal(WebSession(file).run([x])[0], x)


@needs_web
def test_the_memory_of_a_session_is_freed(tmp_path: Path) -> None:
    file = linear_file(tmp_path / "a.onnx", np.eye(3))
    session = WebSession(file)
    number = session._id
    del session
    gc.collect()
    assert number in [session for _, session in PROCESS._unused]
    WebSession(file)
    with pytest.raises(VerificationError):
        PROCESS.call("run", [np.ones((1, 3), np.float32)], id=number)


@pytest.mark.parametrize(("node", "missing"), [(True, "onnxruntime-web is"), (False, "node is")])
def test_what_is_missing_is_named_with_its_remedy(
    node: bool, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if node:
        (programs / "node").touch(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path / "cache"))
    PROCESS.close()
    with pytest.raises(VerificationError, match=f"{missing} not installed: docs/emulators.md"):
        WebSession(linear_file(tmp_path / "a.onnx", np.eye(3)))


@needs_web
def test_a_search_measures_time_there(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 64)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10)).eval()
    options = qtool.SearchOptions(evaluations=1, timing=0.01)
    tuned = qtool.tune(
        model, [x], [x], accuracy=["fast"], target="onnxruntime-web", options=options
    )
    assert tuned.place.runtime.startswith("onnxruntime-web in node, version ")
    assert f", in {tuned.place.runtime}" in str(tuned)


def test_a_search_without_node_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _: "node")
    x = torch.randn(16, 64)
    with pytest.raises(VerificationError, match="time in node: onnxruntime-web is not installed"):
        qtool.tune(nn.Linear(64, 8).eval(), [x], [x], target="onnxruntime-web")
