"""Defects of onnx (docs/upstream.md): a failure means that one is mended."""

import numpy as np
import onnx
import pytest

from tests.upstream.models import model, run

pytestmark = pytest.mark.matrix


def test_pool_with_ceil_mode_has_a_window_too_many() -> None:
    hangs_over = model(
        """(float[1, 1, 5] x) => (y)
        { y = MaxPool <kernel_shape = [2], strides = [3], pads = [0, 1], ceil_mode = 1> (x) }"""
    )
    assert run(hangs_over, np.zeros((1, 1, 5), np.float32)).shape == (1, 1, 2)
    inferred = onnx.shape_inference.infer_shapes(hangs_over).graph.output[0]
    assert inferred.type.tensor_type.shape.dim[2].dim_value == 3


def test_shapes_behind_mean_variance_normalization_are_not_inferred() -> None:
    norm = model("(float[N, 3, 4, 5] x) => (y) { y = MeanVarianceNormalization(x) }")
    onnx.checker.check_model(
        model("(float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"), full_check=True
    )
    with pytest.raises(onnx.shape_inference.InferenceError, match="Constant"):
        onnx.shape_inference.infer_shapes(norm, strict_mode=True)


def test_a_spectrum_without_onesided_has_both_sides() -> None:
    def sides(attribute: str) -> int:
        text = f"""(float[1, 64, 1] x) => (y)
        <int64 step = {{8}}, float[16] w = {{1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}}>
        {{ y = STFT {attribute} (x, step, w) }}"""
        spectrum = model(text)
        assert run(spectrum, np.zeros((1, 64, 1), np.float32)).shape[2] == 9
        inferred = onnx.shape_inference.infer_shapes(spectrum).graph.output[0]
        return inferred.type.tensor_type.shape.dim[2].dim_value

    assert sides("<onesided = 1>") == 9
    assert sides("") == 16
