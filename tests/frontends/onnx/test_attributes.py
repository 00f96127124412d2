"""Operator times attribute against ONNX Runtime: what a reader does not know is never ignored.

Each case stands behind a convolution and before one, so that what is read has to fit with what is
kept. Most of them once came out wrong, and "verified".
"""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from qtool.frontends.onnx.onnx_module import OnnxModule
from tests.backends.onnx.export.networks import run
from tests.frontends.onnx.files import behind_conv, images

SCALES = {
    "up": "1.0, 1.0, 3.0, 2.0",
    "part": "1.0, 1.0, 1.5, 2.5",
    "down": "1.0, 1.0, 0.5, 0.6",
    "channels": "1.0, 2.0, 1.0, 1.0",
    "batch": "2.0, 1.0, 1.0, 1.0",
}
WHERE = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(scale: str, attributes: str) -> str:
    return f"s = Constant <value_floats = [{SCALES[scale]}]> () y0 = Resize <{attributes}> (h, , s)"


RESIZED = {
    f"{scale}, {where}, {rounding}": resize(
        scale, f'coordinate_transformation_mode = "{where}", nearest_mode = "{rounding}"'
    )
    for scale in ("up", "part", "down")
    for where in WHERE
    for rounding in ROUNDING
}
LINEAR = {
    f"linear, {scale}, {where}": resize(
        scale, f'mode = "linear", coordinate_transformation_mode = "{where}"'
    )
    for scale in ("up", "part", "down")
    for where in WHERE
}
OTHERS = {
    "nearest by default": resize("up", 'coordinate_transformation_mode = "asymmetric"'),
    "channels": resize("channels", 'mode = "nearest"'),
    "batch": resize("batch", 'mode = "nearest"'),
    "antialias": resize("down", 'mode = "linear", antialias = 1'),
    "cubic": resize("up", 'mode = "cubic"'),
    "exclude outside": resize("up", 'mode = "cubic", exclude_outside = 1'),
    "axes": "s = Constant <value_floats = [2.0]> () y0 = Resize <axes = [2]> (h, , s)",
    "to one": """z = Constant <value_ints = [2, 4, 1, 1]> ()
        y0 = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">
        (h, , , z)""",
    "not larger": """z = Constant <value_ints = [2, 4, 16, 20]> ()
        y0 = Resize <mode = "nearest", keep_aspect_ratio_policy = "not_larger"> (h, , , z)""",
    **{
        f"cumsum {reverse}{exclusive}": f"""a = Constant <value_int = 2> ()
        y0 = CumSum <reverse = {reverse}, exclusive = {exclusive}> (h, a)"""
        for reverse in (0, 1)
        for exclusive in (0, 1)
    },
    "slopes along the last": """k = Constant <value_floats = [1.,2.,3.,4.,5.,6.,7.,8.]> ()
        y0 = PRelu (h, k)""",
    **{
        f"{kind} of no axes": f"""e = Constant <value_floats = [1.0]> () z = Shape (e)
        o = Constant <value_ints = [1]> () n = Slice (z, o, o)
        y0 = {kind} <noop_with_empty_axes = 1> (h, n)"""
        for kind in ("ReduceL2", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
    },
    "the last of equal ones": """r = Round (h) y0 = ArgMax <axis = 3, select_last_index = 1> (r)""",
    "the first of equal ones": """r = Round (h) y0 = ArgMax <axis = 3> (r)""",
    "a norm in training": """s = Abs (b) y0, m, v = BatchNormalization <training_mode = 1>
        (h, b, b, b, s)""",
    "sizes as floats": """n = Shape (h) i = Constant <value_int = 2> () g = Gather (n, i)
        f = Cast <to = 1> (g) three = Constant <value_float = 3.0> () d = Div (f, three)
        y0 = Mul (h, d)""",
    "indices of maxima": "y0, y1 = MaxPool <kernel_shape = [2, 2], storage_order = 1> (h)",
    "average same": 'y0 = AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (h)',
    "average over the end": """y0 = AveragePool <kernel_shape = [3, 3], strides = [2, 2],
        pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1> (h)""",
    **{
        f"maximum dilated, {kind} {strides}": f"""y0 = MaxPool <kernel_shape = [3, 2],
        strides = {strides}, dilations = [2, 3], auto_pad = "{kind}"> (h)"""
        for kind in ("SAME_UPPER", "SAME_LOWER")
        for strides in ([1, 2], [2, 3])
    },
    "maximum over the end": """y0 = MaxPool <kernel_shape = [3, 3], strides = [2, 2],
        ceil_mode = 1> (h)""",
    "slices backwards": """s = Constant <value_ints = [-1]> () e = Constant <value_ints = [-9]> ()
        a = Constant <value_ints = [3]> () y0 = Slice (h, s, e, a, s)""",
    "pads that cut": "p = Constant <value_ints = [0,0,-1,0,0,0,2,-1]> () y0 = Pad (h, p)",
    "pads that wrap": """p = Constant <value_ints = [0,0,1,2,0,0,2,1]> ()
        y0 = Pad <mode = "wrap"> (h, p)""",
    "transposed same": """y0 = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (h, w2)""",
    "transposed to a size": """y0 = ConvTranspose <strides = [2, 2],
        output_shape = [17, 18]> (h, w2)""",
    "transposed uneven": "y0 = ConvTranspose <pads = [0, 1, 1, 0]> (h, w2)",
    "transposed long": """y0 = ConvTranspose <strides = [4, 2], pads = [0, 2, 1, 0],
        output_padding = [3, 1]> (h, w2)""",
    "transposed same, lower": """y0 = ConvTranspose <strides = [3, 5], dilations = [2, 1],
        auto_pad = "SAME_LOWER", output_padding = [1, 2]> (h, w2)""",
    "transposed to a size, upper": """y0 = ConvTranspose <strides = [2, 2],
        output_shape = [16, 15], auto_pad = "SAME_UPPER"> (h, w2)""",
    "axes, kept": """z = Constant <value_ints = [12, 5]> ()
        y0 = Resize <mode = "cubic", axes = [-1, 2]> (h, , , z)""",
    "axes, of a computed size": """t = Shape <start = 2> (x) two = Constant <value_ints = [2]> ()
        z = Mul (t, two) y0 = Resize <mode = "linear", axes = [2, 3]> (h, , , z)""",
    "axes of a ratio": """z = Constant <value_ints = [12, 20]> () y0 = Resize <mode = "linear",
        axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (h, , , z)""",
    "split in three": "a, c, y0 = Split <axis = 3, num_outputs = 3> (h)",
    "all axes squeezed": "m = ReduceMax (h) y0 = Squeeze (m)",
    "dropped": "y0, y1 = Dropout (h)",
    "softmax of old": "y0 = Softmax <axis = 2> (h)",
}
OTHER_OPSETS = {
    "average dilated": (19, "y0 = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (h)"),
    "upsample linear": (
        9,
        f"""s = Constant <value = float[4] {{{SCALES["up"]}}}> ()
        y0 = Upsample <mode = "linear"> (h, s)""",
    ),
    "upsample nearest": (
        9,
        f"s = Constant <value = float[4] {{{SCALES['up']}}}> () y0 = Upsample (h, s)",
    ),
    "resize linear": (
        10,
        f"""s = Constant <value = float[4] {{{SCALES["part"]}}}> ()
        y0 = Resize <mode = "linear"> (h, s)""",
    ),
    "resize nearest": (
        10,
        f"s = Constant <value = float[4] {{{SCALES['up']}}}> () y0 = Resize (h, s)",
    ),
    "softmax over the rest": (12, "y0 = Softmax <axis = 2> (h)"),
    "softmax by default": (11, "y0 = Softmax (h)"),
    "hardmax over the rest": (12, "y0 = Hardmax <axis = 2> (h)"),
    "a norm of each element": (
        8,
        """m = ReduceMean <axes = [0], keepdims = 0> (h) v = Abs (m)
        y0 = BatchNormalization <spatial = 0> (h, m, m, m, v)""",
    ),
}
CASES = {name: (18, text) for name, text in {**RESIZED, **LINEAR, **OTHERS}.items()} | OTHER_OPSETS


@pytest.mark.parametrize("name", list(CASES))
def test_it_is_as_in_the_runtime(name: str) -> None:
    opset, text = CASES[name]
    model = behind_conv(text, opset, "2,3,8,8")
    x = images(2)
    expected = run(model, (x,), optimise=False)
    found = OnnxModule(model).eval()(x)
    results = found if isinstance(found, tuple) else (found,)
    for a, b in zip(results, expected, strict=False):
        assert a.shape == b.shape
        np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


READ = {
    "a norm of each element",
    "up, half_pixel, round_prefer_floor",  # every rounding to the nearest of whole copies is one
    "up, asymmetric, floor",
    "part, half_pixel, round_prefer_ceil",
    "linear, up, half_pixel",
    "the first of equal ones",
    "cumsum 00",
    "maximum over the end",
}


@pytest.mark.parametrize("name", sorted(READ))
def test_what_torch_has_too_is_read(name: str) -> None:
    opset, text = CASES[name]
    found = OnnxModule(behind_conv(text, opset, "2,3,8,8")).eval()
    found.observe([images(2)])
    assert not found.fallback
    assert isinstance(found(images(2)), torch.Tensor)


def test_constants_that_are_read_only_leave_torch_silent() -> None:
    """Those in raw bytes; torch warns once for a process, with any filter."""
    fill = numpy_helper.from_array(np.array([2], np.float32))  # raw bytes
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("ConstantOfShape", ["n"], ["c"], value=fill),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, ["N", 3]) for v in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    torch.set_warn_always(True)
    try:
        module = OnnxModule(helper.make_model(graph, opset_imports=opsets, ir_version=9)).eval()
        assert torch.equal(module.observe([torch.ones(2, 3)])["y"], torch.full((2, 3), 3.0))
        assert not module.fallback, "a warning, here an error, took the place of the operator"
    finally:
        torch.set_warn_always(False)
