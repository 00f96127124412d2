"""Defects of ONNX Runtime (docs/upstream.md): a failure means that one is mended.

Three are in 1.32. Their workarounds stay: a file also runs in older versions.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qtool.backends.onnxruntime.session import VERSION
from tests.upstream.models import model, run

pytestmark = pytest.mark.matrix

IS_1_32 = VERSION >= (1, 32)


def test_pad_of_zeros_is_fused_into_a_max_pool() -> None:
    padded = model(
        """(float[1, 1, 2, 2] x) => (y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> {
            q = Pad(x, p)
            y = MaxPool <kernel_shape = [2, 2]> (q)
        }"""
    )
    minus = -np.ones((1, 1, 2, 2), np.float32)
    assert run(padded, minus, optimised=False)[0, 0, 0, 0] == 0
    assert run(padded, minus)[0, 0, 0, 0] == (0 if IS_1_32 else -1)


def test_two_qdq_pairs_become_one() -> None:
    twice = model(
        """(float[N] x) => (float[N] y)
        <float a = {0.1}, float b = {0.07}, uint8 m = {0}, uint8 n = {3}> {
            q = QuantizeLinear(x, a, m)
            d = DequantizeLinear(q, a, m)
            r = QuantizeLinear(d, b, n)
            y = DequantizeLinear(r, b, n)
        }"""
    )
    line = np.linspace(0, 17, 2000, dtype=np.float32)
    assert (run(twice, line) != run(twice, line, optimised=False)).sum() > 1900


def test_uint8_softmax_wraps_to_zero() -> None:
    soft = model(
        """(uint8[1, 4] x) => (uint8[1, 4] y) <float a = {0.1}, float b = {0.001}, uint8 z = {0}> {
            d = DequantizeLinear(x, a, z)
            s = Softmax <axis = -1> (d)
            y = QuantizeLinear(s, b, z)
        }"""
    )
    codes = np.array([[0, 10, 100, 200]], np.uint8)
    assert run(soft, codes, optimised=False).tolist() == [[0, 0, 0, 255]]
    assert run(soft, codes).tolist() == [[0, 0, 0, 255 if IS_1_32 else 0]]


def test_dilated_max_pool_with_auto_pad_has_fewer_windows() -> None:
    dilated = model(
        """(float[1, 1, 6] x) => (y) {
            y = MaxPool <kernel_shape = [2], strides = [3], dilations = [2],
                         auto_pad = "SAME_LOWER"> (x)
        }"""
    )
    assert run(dilated, np.zeros((1, 1, 6), np.float32)).shape == (1, 1, 1)
    inferred = onnx.shape_inference.infer_shapes(dilated).graph.output[0]
    assert inferred.type.tensor_type.shape.dim[2].dim_value == 2


def test_slice_backwards_to_the_largest_integer_takes_two_elements() -> None:
    backwards = model(
        """(float[1, 5] x) => (y)
        <int64[1] s = {1}, int64[1] e = {9223372036854775807}, int64[1] a = {1},
         int64[1] t = {-1}> {
            y = Slice(x, s, e, a, t)
        }"""
    )
    five = np.zeros((1, 5), np.float32)
    assert run(backwards, five).shape == (1, 2)
    assert onnx.reference.ReferenceEvaluator(backwards).run(None, {"x": five})[0].shape == (1, 0)


def test_pool_larger_than_its_image_has_a_result() -> None:
    larger = model(
        """(float[1, 1, 1] x) => (y) { y = AveragePool <kernel_shape = [2], strides = [2]> (x) }"""
    )
    assert run(larger, np.ones((1, 1, 1), np.float32)).shape == (1, 1, 1)


def test_batch_normalization_in_training_mode_overwrites_its_statistics() -> None:
    training = model(
        """(float[N, 2] x) => (y)
        <float[2] g = {1, 1}, float[2] b = {1, 1}, float[2] m = {1, 1}, float[2] v = {1, 1}> {
            y, mean, variance = BatchNormalization <training_mode = 1> (x, g, b, m, v)
        }"""
    )
    session = ort.InferenceSession(training.SerializeToString())
    four = {"x": np.arange(8, dtype=np.float32).reshape(4, 2) ** 2}
    first, second = (session.run(None, four)[0] for _ in range(2))
    assert np.abs(first - second).max() > 0.1


def test_weights_of_zeros_give_more_than_zero() -> None:
    zeros = model(
        """(float[N, 64] x) => (float[N, 8] y) <float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}> {
            d = DequantizeLinear <axis = 1> (w, s)
            y = MatMul (x, d)
        }""",
        21,
    )
    zeros.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((64, 8), np.int8), "w"))
    some = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    assert not run(zeros, some, optimised=False).any()
    assert run(zeros, some).any()


def test_empty_optional_input_ends_the_process(tmp_path: Path) -> None:
    norm = model("(float[N, 4] x, float[4] g) => (float[N, 4] y) { y = LayerNormalization (x, g) }")
    norm.graph.node[0].input.append("")
    assert _ends_the_process(norm, tmp_path, {})


def test_gru_of_no_features_ends_the_process(tmp_path: Path) -> None:
    gru = model(
        """(float[3, 1, 0] x, float[1, 6, 0] w, float[1, 6, 2] r) => (float[3, 1, 1, 2] y)
        { y = GRU <hidden_size = 2> (x, w, r) }"""
    )
    assert _ends_the_process(gru, tmp_path, {"x": (3, 1, 0), "w": (1, 6, 0), "r": (1, 6, 2)})


def test_scan_over_no_steps_ends_the_process(tmp_path: Path) -> None:
    scan = model(
        """(float[3] s, float[3, T] x) => (float[3] e, float[3, T] y) {
        e, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = step (float[3] a, float[3] c) => (float[3] d, float[3] f)
            { d = Add (a, c) f = Identity (d) }> (s, x) }"""
    )
    assert _ends_the_process(scan, tmp_path, {"s": (3,), "x": (3, 0)})


def test_an_addition_and_a_layer_norm_become_one_node(tmp_path: Path) -> None:
    for addition, operators in (
        ("Add", ["SkipLayerNormalization"]),
        ("Sum", ["Sum", "LayerNormalization"]),
    ):
        norm = model(
            f"""(float[1, 2, 4] x) => (float[1, 2, 4] y)
            <float[4] g = {{1, 1, 1, 1}}, float[4] b = {{0, 0, 0, 0}}> {{
                a = {addition} (x, x)
                y = LayerNormalization (a, g, b)
            }}"""
        )
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        ort.InferenceSession(norm.SerializeToString(), options)
        optimised = onnx.load(options.optimized_model_filepath)
        assert [n.op_type for n in optimised.graph.node] == operators


def test_transposed_tensor_times_vector_is_another_product() -> None:
    times_vector = model(
        """(float[4, 3] x, float[4] v) => (y)
        { t = Transpose <perm = [1, 0]> (x)
          y = MatMul (t, v) }"""
    )
    fed = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "v": np.ones(4, np.float32)}
    fused = ort.InferenceSession(times_vector.SerializeToString()).run(None, fed)[0]
    assert fed["x"].sum(0).tolist() == [18, 22, 26]
    assert fused.tolist() != [18, 22, 26]


def test_sum_over_an_empty_last_axis_keeps_it() -> None:
    empty = model(
        """(float[N, 0] x) => (float[N, 1] y) <int64[1] a = {-1}>
        { y = ReduceSum <keepdims = 1> (x, a) }"""
    )
    assert run(empty, np.zeros((3, 0), np.float32)).shape == (3, 1 if IS_1_32 else 0)


_RUN = """
import json, sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
session.run(None, {n: np.zeros(s, np.float32) for n, s in json.loads(sys.argv[2]).items()})
"""


def _ends_the_process(
    graph: onnx.ModelProto, folder: Path, sizes: dict[str, tuple[int, ...]]
) -> bool:
    file = folder / "model.onnx"
    file.write_bytes(graph.SerializeToString())
    command = [sys.executable, "-c", _RUN, str(file), json.dumps(sizes)]
    return subprocess.run(command, check=False).returncode < 0  # by a signal
