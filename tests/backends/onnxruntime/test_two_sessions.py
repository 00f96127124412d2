"""A file as written and in integer kernels: rounding passes, another result does not."""

from __future__ import annotations

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
