"""Defects of OpenVINO (docs/upstream.md): a failure means that one is mended."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.upstream.models import model, run

openvino = pytest.importorskip("openvino")
pytestmark = pytest.mark.matrix

_CODES = "float s = {0.03}, uint8 z = {113}"


def _loaded(graph: onnx.ModelProto) -> Any:
    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(core.read_model(graph.SerializeToString()), "CPU", options)


def _results(graph: onnx.ModelProto, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the output of OpenVINO, and that of ONNX Runtime without optimisation."""
    return np.array(_loaded(graph)({0: x})[0]), run(graph, x, optimised=False)


@pytest.mark.parametrize(
    ("operator", "x", "expected", "result"),
    [
        ("ReduceMax", [-1, -2, -3, -4], -1, 0),
        ("ReduceMax", [0.1, 0.2, 0.3, 0.4], 0.4, 0),
        ("ReduceMin", [1.6, 2, 3, 4], 1.6, 2),
    ],
)
def test_quantized_extreme_is_rounded_to_an_unsigned_integer(
    operator: str, x: list[float], expected: float, result: float
) -> None:
    """The kernel keeps its extremes in the type of the codes before it quantizes them."""
    graph = model(
        f"""(float[1, 4] x) => (y) <int64[1] axes = {{1}}, float s = {{0.1}}, uint8 z = {{100}}> {{
            r = {operator} (x, axes)
            q = QuantizeLinear (r, s, z)
            y = DequantizeLinear (q, s, z)
        }}"""
    )
    found, reference = _results(graph, np.array([x], np.float32))
    assert reference.item() == pytest.approx(expected)
    assert found.item() == pytest.approx(result)


@pytest.mark.parametrize(("pads", "padded"), [("0, 0, 0, 1", 113 * 0.03), ("1, 0, 0, 1", 0)])
def test_pad_of_one_axis_is_off_by_the_zero_point(pads: str, padded: float) -> None:
    graph = model(
        f"""(float[1, 2] x) => (y) <int64[4] p = {{{pads}}}, {_CODES}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            b = Pad (d, p)
            c = QuantizeLinear (b, s, z)
            y = DequantizeLinear (c, s, z)
        }}"""
    )
    found, reference = _results(graph, np.zeros((1, 2), np.float32))
    assert not reference.any()
    assert found[-1, 2] == pytest.approx(padded, abs=1e-6)


def test_reshape_moves_the_scales_of_a_linear_layer_to_another_dimension() -> None:
    graph = model(
        f"""(float[N, 4, 4] x) => (y) <
            int64[2] flat = {{-1, 4}}, int64[3] image = {{-1, 4, 4}}, {_CODES},
            float[4] scales = {{0.01, 0.02, 0.03, 0.04}}, int8[4, 4] w = {{
                100, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100}}> {{
            f = Reshape (x, flat)
            q = QuantizeLinear (f, s, z)
            d = DequantizeLinear (q, s, z)
            u = DequantizeLinear <axis = 1> (w, scales)
            p = MatMul (d, u)
            y = Reshape (p, image)
        }}"""
    )
    found, reference = _results(graph, np.full((1, 4, 4), 0.3, np.float32))
    np.testing.assert_allclose(found, reference.transpose(0, 2, 1), rtol=1e-5)
    assert reference[0, 0].tolist() == pytest.approx([0.3, 0.6, 0.9, 1.2])


def test_padded_1x1_convolution_with_strides_has_another_size() -> None:
    graph = model(
        f"""(float[1, 1, 7, 9] x) => (y) <
            {_CODES}, float scale = {{1}}, int8[1, 1, 1, 1] w = {{1}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            u = DequantizeLinear (w, scale)
            y = Conv <kernel_shape = [1, 1], strides = [2, 2], pads = [1, 1, 1, 1]> (d, u)
        }}"""
    )
    found, reference = _results(graph, np.ones((1, 1, 7, 9), np.float32))
    assert reference.shape == (1, 1, 5, 6)
    assert found.shape != reference.shape


def test_product_with_a_negative_channel_has_one_factor_before_codes() -> None:
    """The first channel's, where a size is open."""
    graph = model(
        f"""(float[N, 2, 1] x) => (y) <float[1, 2, 1] k = {{1, -0.5}}, {_CODES}> {{
            p = Mul (x, k)
            q = QuantizeLinear (p, s, z)
            y = DequantizeLinear (q, s, z)
        }}"""
    )
    found, reference = _results(graph, np.ones((1, 2, 1), np.float32))
    assert reference.ravel().tolist() == pytest.approx([0.99, -0.51])
    assert found.ravel().tolist() == pytest.approx([0.99, 0.99])


def test_squeeze_without_axes_is_not_loaded() -> None:
    with pytest.raises(RuntimeError, match="dynamic rank"):
        _loaded(model("(float[N, 1, 3] x) => (y) { s = Squeeze (x) y = Mul (s, s) }"))


def test_pad_that_wraps_is_not_loaded() -> None:
    wraps = """(float[N, 1, 3] x) => (y) <int64[6] p = {0, 0, 1, 0, 0, 1}>
        { y = Pad <mode = "wrap"> (x, p) }"""
    with pytest.raises(RuntimeError, match="Pad"):
        _loaded(model(wraps, opset=19))
