"""A file as written and in integer kernels: rounding passes, another result does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qtool.backends.onnxruntime.two_sessions import compare_sessions
from qtool.core.errors import DataError, VerificationError
from qtool.verification import Coverage, Difference, FileCheck, SessionCheck

QDQ = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 4] x) => (float[{rows}, 3] y)
<float s = {{0.02}}, uint8 z = {{128}}, int8 w = {{0}}, int8[4, 3] c = {{{codes}}}> {{
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  k = DequantizeLinear (c, s, w)
  p = MatMul (d, k)
  pq = QuantizeLinear (p, s, z)
  {end}
}}"""
CODES = ", ".join(str(9 * i - 50) for i in range(12))


def file(folder: Path, end: str = "y = DequantizeLinear (pq, s, z)", rows: str = "n") -> Path:
    graph = QDQ.format(codes=CODES, end=end, rows=rows)
    onnx.save(onnx.parser.parse_model(graph), folder / "qdq.onnx")
    return folder / "qdq.onnx"


def batches(*sizes: int) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(0)
    return [[generator.normal(size=(n, 4)).astype(np.float32)] for n in sizes]


def test_samples_sizes_and_kernels(tmp_path: Path) -> None:
    check = compare_sessions(file(tmp_path), batches(32, 32, 5, 1))
    assert (check.samples, check.batches) == (70, (1, 5, 32))
    assert check.coverage.share == 1
    assert check.difference.worst <= 0.02 * 255  # a code, in steps of 1/255 of a small range
    assert check.passed


def test_a_file_that_takes_one_size_alone(tmp_path: Path) -> None:
    fixed = file(tmp_path, "y1 = DequantizeLinear (pq, s, z)\n  y = Expand (y1, e)")
    model = onnx.load(fixed)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([32, 3]), "e"))
    onnx.save(model, fixed)
    assert compare_sessions(fixed, batches(32)).passed
    with pytest.raises(VerificationError, match=r"fails on qdq\.onnx"):
        compare_sessions(fixed, batches(32, 5))


def test_no_sample(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing was compared"):
        compare_sessions(file(tmp_path), [])


@pytest.mark.parametrize(("mean", "passed"), [(0.5, True), (9.0, False), (np.inf, False)])
def test_the_mean_difference_has_a_limit(mean: float, passed: bool) -> None:
    sessions = SessionCheck(8, (8,), Difference(12.0, mean), Coverage("onnxruntime", ()))
    check = FileCheck(0, 0, 0, 0.0, None, 0, not_compared="no torch", sessions=sessions)
    assert check.passed == passed
    assert ("not verified" in str(check)) != passed
    assert ("in two settings of the runtime" in str(check)) == passed


def test_outputs_without_a_finite_value_are_not_verified(tmp_path: Path) -> None:
    end = "f = DequantizeLinear (pq, s, z)\n  n = Sub (f, f)\n  y = Div (n, n)"
    check = compare_sessions(file(tmp_path, end), batches(8))
    assert (check.not_finite, check.passed) == (("y",), False)
    assert ("outputs", "NaN or Inf in every value: y") in check.rows()


def test_what_is_integer_as_written_is_not_compared(tmp_path: Path) -> None:
    text = QDQ.format(codes=CODES, end="y = DequantizeLinear (pq, s, z)", rows="n")
    integer = "pq = QLinearMatMul (q, s, z, c, s, w, s, z)"
    lines = [line for line in text.splitlines() if not line.strip().startswith(("d ", "k ", "p "))]
    written = "\n".join(lines).replace("pq = QuantizeLinear (p, s, z)", integer)
    onnx.save(onnx.parser.parse_model(written), tmp_path / "integer.onnx")
    sessions = compare_sessions(tmp_path / "integer.onnx", batches(8))
    assert not sessions.is_compared
    check = FileCheck(0, 0, 0, 0.0, None, 0, not_compared="no torch", sessions=sessions)
    assert "it runs; with torch the integer engine verifies it" in str(check)
    assert "so that nothing was compared" in str(check)


def test_a_cpu_that_saturates_is_named() -> None:
    differs = SessionCheck(8, (8,), Difference(40.0, 9.0), Coverage("onnxruntime", ()))
    assert not any("reduce_range" in text for _, text in differs.rows())
    assert any("reduce_range" in t for _, t in replace(differs, saturates=True).rows())
