"""Sessions: what the runtime is asked for, and what is said when it refuses."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qtool.backends.onnxruntime.executed_file import ExecutedFile
from qtool.backends.onnxruntime.session import (
    RUNTIME,
    OnnxSession,
    feeds,
    optimised_graph,
    run,
    session,
)
from qtool.core.errors import VerificationError
from tests.backends.onnx.export.networks import exported, samples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("two_inputs"))
    return path


def test_options_are_what_was_asked_for(file: Path) -> None:
    level = ort.GraphOptimizationLevel
    plain, full = session(file, optimise=False), session(file, threads=1)
    assert plain.get_session_options().graph_optimization_level == level.ORT_DISABLE_ALL
    assert full.get_session_options().graph_optimization_level == level.ORT_ENABLE_ALL
    assert full.get_session_options().intra_op_num_threads == 1
    assert full.get_providers() == ["CPUExecutionProvider"]


def test_arrays_go_in_by_position(file: Path) -> None:
    model = session(file)
    a, b = (t.numpy() for t in samples("two_inputs", 3))
    assert list(feeds(model, [a, b])) == ["a", "b"]
    assert run(model, [a, b])[0].shape == (3, 5)
    with pytest.raises(ValueError, match="zip"):
        feeds(model, [a])


def test_the_optimised_graph_is_read_back_and_nothing_is_left(file: Path) -> None:
    operators = {n.op_type for n in optimised_graph(file).graph.node}
    assert "QGemm" in operators
    assert [p.name for p in file.parent.iterdir()] == ["model.onnx"]
    assert "DequantizeLinear" in {n.op_type for n in onnx.load(file).graph.node}


def test_more_dimensions_than_arrays_have_are_refused(tmp_path: Path) -> None:
    sizes = ",".join(["1"] * 65)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{sizes}] x) => (float[{sizes}] y) {{ y = Relu (x) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "deep.onnx")
    with pytest.raises(VerificationError, match=r"'x' has 65 dimensions, and arrays .* at most 64"):
        OnnxSession(tmp_path / "deep.onnx")
    with pytest.raises(VerificationError, match=r"/deep.onnx: 'x' has"):  # its node has no name
        _ = ExecutedFile(tmp_path / "deep.onnx").executed_graph


def test_refusals_name_the_file_and_the_runtime(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(file.read_bytes()[:200])
    with pytest.raises(VerificationError, match=f"broken.onnx: {RUNTIME} does not load it"):
        session(broken)
    a, b = (t.numpy() for t in samples("two_inputs", 3))
    with pytest.raises(VerificationError, match=f"{RUNTIME} fails on the model"):
        run(session(file), [a, b[:2]])


def test_other_sizes_are_named(file: Path) -> None:
    a, b = (t.numpy() for t in samples("two_inputs", 3))
    said = rf"model.onnx takes 'a' of shape \[batch, {a.shape[1]}\], and the data has \[2, 7\]; "
    said += r"give data of that shape, or write a file .* `qtool quantize --dynamic a:1`"
    wrong, opened = np.zeros((2, 7), np.float32), OnnxSession(file)
    with pytest.raises(VerificationError, match=said):
        opened.run([wrong, b])
    with pytest.raises(VerificationError, match=said):
        opened.seconds([wrong, b], 1, lambda: 0.0)
