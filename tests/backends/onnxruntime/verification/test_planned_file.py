"""Codes and graphs of a file against its plan."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from qtool.backends.onnxruntime import executed_file
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.verification import exported_file as module
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.planned_file import check_parity
from qtool.verification import Difference, Parity
from qtool.verification.parity import TOLERANCE
from tests.backends.onnx.export.networks import exported, model, quantized, run, samples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("residual"))
    return path


def batch(seed: int) -> list[np.ndarray]:
    return [t.numpy() for t in samples("residual", 3, seed=seed)]


def test_every_batch_is_compared(file: Path) -> None:
    one, two = compare_codes(file, [batch(1)]), compare_codes(file, [batch(1), batch(2)])
    assert one.exact
    assert two.exact
    assert (one.samples, two.samples) == (3, 6)
    assert two.elements == 2 * one.elements > 0
    assert two.first is None
    assert two.share == 1
    assert two.worst == 0


def test_another_weight_is_found_and_its_first_tensor_named(file: Path) -> None:
    changed = onnx.load(file)
    codes = {i.name: i for i in changed.graph.initializer}
    weights = [n for n in codes if n.endswith(".weight.codes")]
    stored = codes[weights[0]]
    array = onnx.numpy_helper.to_array(stored).copy()
    array[...] = -array
    stored.CopyFrom(onnx.numpy_helper.from_array(array, stored.name))
    # the runtime runs the file as it is, the engine the changed one
    found = compare_codes(ExportedFile(file, qdq=changed), [batch(1)])
    assert not found.exact
    assert found.worst > 0
    assert weights[0] == "conv1.0.weight.codes"
    assert found.first == "relu"  # the first codes behind it
    assert "first difference in relu" in str(found)


def test_two_sessions_and_one_reading_show_everything(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, read = [], []
    session, load = module.session, onnx.load
    for each in (executed_file, module):
        monkeypatch.setattr(each, "session", lambda *a, **k: opened.append(k) or session(*a, **k))
    monkeypatch.setattr(onnx, "load", lambda p, **k: read.append(Path(p)) or load(p, **k))
    onnx_file, x = ExportedFile(file), [t.numpy() for t in samples("residual", 8)]
    expected = [t.detach().numpy() for t in [quantized("residual")(*samples("residual", 8))]]
    assert check_parity(
        onnx_file, x, expected, quantized("residual")._simulation.output_scales()
    ).passed
    assert compare_codes(onnx_file, [x]).exact
    assert audit(onnx_file).share == 1
    assert len(opened) == 2
    assert [p.name for p in read] == ["model.onnx", "optimised.onnx"]


def test_another_batch_is_run_again(file: Path) -> None:
    onnx_file = ExportedFile(file)
    one, other = ([t.numpy() for t in samples("residual", 2, seed=s)] for s in (1, 2))
    assert onnx_file.run(one) is onnx_file.run(one)
    assert not np.array_equal(onnx_file.run(one)[0], onnx_file.run(other)[0])


def test_nodes_without_names_are_called_after_what_they_make(file: Path) -> None:
    model = onnx.load(file)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, file)
    names = {n.name for n in ExportedFile(file).executed_graph.graph.node}
    assert any(n.output[0] in names for n in model.graph.node)
    assert all(not n.name for n in onnx.load(file).graph.node)  # the file stays as it is


def parts(name: str, batch: int = 16) -> tuple[list[np.ndarray], list[np.ndarray], list]:
    """Inputs, the outputs of fake quantization, and the size of a code of each."""
    x = samples(name, batch)
    with torch.no_grad():
        found = quantized(name)(*x)
    outputs = list(found.values()) if isinstance(found, dict) else [found]
    return (
        [t.numpy() for t in x],
        [t.numpy() for t in outputs],
        list(quantized(name)._simulation.output_scales()),
    )


def test_a_corrupted_file_does_not(tmp_path: Path) -> None:
    wrong = model("residual")
    (scale,) = (i for i in wrong.graph.initializer if i.name == "conv2.0.weight.scale")
    array = numpy_helper.to_array(scale) * np.float32(3)
    scale.CopyFrom(numpy_helper.from_array(array, scale.name))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    found = check_parity(tmp_path / "wrong.onnx", *parts("residual"))
    assert not found.passed
    assert min(found.as_written.mean, found.optimised.mean) > TOLERANCE


def test_an_output_of_another_size_does_not_pass(file: Path) -> None:
    x, (out,), steps = parts("residual")
    found = check_parity(file, x, [out[:, 1:]], steps)
    assert not found.passed
    assert found.optimised.worst == np.inf


@pytest.mark.parametrize(("shift", "codes", "passed"), [(7, 7, True), (10, 10, False)])
def test_a_difference_is_counted_in_codes(
    file: Path, shift: int, codes: float, passed: bool
) -> None:
    x = [t.numpy() for t in samples("residual", 4)]
    (out,) = run(exported("residual"), samples("residual", 4), optimise=False)
    found = check_parity(file, x, [out + np.float32(shift * 0.5)], [0.5])
    assert found.as_written.worst == pytest.approx(codes, abs=0.01)
    assert found.passed is passed


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_no_number_never_passes(file: Path, bad: float) -> None:
    inputs, expected, steps = parts("residual", 4)
    expected[0][1, 2] = bad
    found = check_parity(file, inputs, expected, steps)
    assert not found.passed
    assert found.optimised.worst == np.inf


def test_outputs_of_any_number_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("outputs"))
    inputs, expected, steps = parts("outputs")
    assert check_parity(path, inputs, expected, steps).passed
    for position in range(4):
        wrong = [e.copy() for e in expected]
        wrong[position] += 100
        assert not check_parity(path, inputs, wrong, steps).passed
    with pytest.raises(ValueError, match="zip"):
        check_parity(path, inputs, expected[:3], steps)


INFINITE = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N] x) => (float[N] y) {
        zero = Constant <value_float=0.0> ()
        y = Div (x, zero)
    }"""


def test_equal_infinities_and_nan_are_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(INFINITE), path)
    x = [np.array([-1, 0, 1], np.float32)]
    assert check_parity(path, x, [np.array([-np.inf, np.nan, np.inf], np.float32)], [None]).passed
    assert not check_parity(path, x, [np.array([-np.inf, np.nan, 0], np.float32)], [None]).passed


@pytest.mark.parametrize(("reference", "size"), [([0, 255], 1), ([51, 51], 0.2), ([0, 0], 1)])
def test_a_float_output_is_measured_against_its_range(
    tmp_path: Path, reference: list[float], size: float
) -> None:
    path = tmp_path / "model.onnx"
    text = INFINITE.replace("Div (x, zero)", "Add (x, zero)")
    onnx.save(onnx.parser.parse_model(text), path)
    expected = np.array(reference, np.float32)
    found = check_parity(path, [expected + np.float32(3)], [expected], [None])
    assert found.optimised.worst == pytest.approx(3 / size)


def test_the_larger_difference_decides() -> None:
    below, above = Difference(0.0, TOLERANCE), Difference(0.0, TOLERANCE + 0.01)
    assert Parity(1, below, below, TOLERANCE).passed
    assert not Parity(1, below, above, TOLERANCE).passed
    assert not Parity(1, above, below, TOLERANCE).passed
