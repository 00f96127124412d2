"""Every defect that ONNX Runtime runs without a word is found by the structure check."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtool.backends.onnxruntime.verification.planned_file import check_structure, check_well_formed
from qtool.core.errors import VerificationError
from qtool.planning.plan import Execution
from tests.backends.onnx.export.networks import (
    NETWORKS,
    codes_apart,
    model,
    quantized,
    run,
    samples,
)

Change = Callable[[onnx.ModelProto], None]


def integer_nodes(name: str) -> set[str]:
    return {d.node for d in quantized(name).plan.nodes if d.execution is Execution.INTEGER}


def array(file: onnx.ModelProto, name: str) -> np.ndarray:
    return numpy_helper.to_array(next(i for i in file.graph.initializer if i.name == name))


def put(file: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    found = next(i for i in file.graph.initializer if i.name == name)
    found.CopyFrom(numpy_helper.from_array(value, name))


def node(file: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in file.graph.node if n.name == name)


def change_array(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(file: onnx.ModelProto) -> None:
        put(file, name, function(array(file, name)))

    return change


def set_attribute(name: str, key: str, value: int) -> Change:
    def change(file: onnx.ModelProto) -> None:
        found = node(file, name)
        kept = [a for a in found.attribute if a.name != key]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(key, value)])

    return change


def float_weight(file: onnx.ModelProto) -> None:
    """The Gemm reads a float weight, as files of other tools have it."""
    weight = node(file, "2.weight.dequantize")
    codes, scale = array(file, weight.input[0]), array(file, weight.input[1])
    real = (codes * scale[:, None]).astype(np.float32)
    file.graph.initializer.append(numpy_helper.from_array(real, "2.weight"))
    node(file, "2").input[1] = "2.weight"


def float_input(file: onnx.ModelProto) -> None:
    node(file, "0").input[0] = "input"


def float_bias(file: onnx.ModelProto) -> None:
    file.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "b"))
    node(file, "0").input[2] = "b"


def uint8_weight(file: onnx.ModelProto) -> None:
    for part in ("codes", "zero_point"):
        put(file, f"0.weight.{part}", array(file, f"0.weight.{part}").astype(np.uint8))


def computed_scale(file: onnx.ModelProto) -> None:
    file.graph.node.insert(0, helper.make_node("Identity", ["input.scale"], ["computed"], name="i"))
    for each in file.graph.node:
        if each.op_type == "QuantizeLinear" and each.input[1] == "input.scale":
            each.input[1] = "computed"


def transposed(file: onnx.ModelProto) -> None:
    """The same layer with its weight the other way: right, but not how qtool writes it."""
    put(file, "2.weight.codes", np.ascontiguousarray(array(file, "2.weight.codes").T))
    set_attribute("2", "transB", 0)(file)
    set_attribute("2.weight.dequantize", "axis", 1)(file)


DEFECTS: dict[str, tuple[Change, str]] = {
    "axis of a square weight": (
        set_attribute("2.weight.dequantize", "axis", 1),
        "2: weight scales along axis 1, output channels on axis 0",
    ),
    "Gemm bias scale": (
        change_array("0.bias.scale", lambda s: s * np.float32(1.5)),
        "0: its bias scale is not input scale x weight scale",
    ),
    "Gemm bias scale by one bit": (
        change_array("3.bias.scale", lambda s: np.nextafter(s, np.float32(1))),
        "3: its bias scale",
    ),
    "float weight": (float_weight, "2: its weight is not dequantized from codes"),
    "float input": (float_input, "0: its input is not dequantized from codes"),
    "float bias": (float_bias, "0: its bias is not dequantized from codes"),
    "uint8 weight": (uint8_weight, "0: its weight is uint8, not int8"),
    "Gemm the other way": (transposed, "2: .*axis"),
    "rank-1 activation scale": (
        change_array("input.scale", lambda s: s.reshape(1)),
        "input.quantize: the scale of an activation must be a scalar",
    ),
    "zero scale": (change_array("input.scale", np.zeros_like), "input.quantize: its scale is not"),
    "NaN scale": (
        change_array("1.scale", lambda s: np.full_like(s, np.nan)),
        "1.quantize: its scale is not positive and finite: nan",
    ),
    "negative weight scale": (change_array("3.weight.scale", np.negative), "3.weight.dequantize"),
    "computed scale": (computed_scale, "input.quantize: its scale is not a constant"),
}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_an_export_passes(name: str) -> None:
    check_structure(model(name), integer_nodes(name))


@pytest.mark.parametrize(("change", "message"), DEFECTS.values(), ids=DEFECTS.keys())
def test_a_defect_is_found(change: Change, message: str) -> None:
    file = model("linear")
    change(file)
    del file.graph.value_info[:]  # with what was inferred before, the checker finds some of them
    with pytest.raises(VerificationError, match=message):
        check_structure(file, integer_nodes("linear"))


@pytest.mark.parametrize("defect", ["axis of a square weight", "Gemm bias scale"])
def test_the_runtime_itself_does_not_find_it(defect: str) -> None:
    """Why the check is there: the integer kernel computes something else than the file says."""
    file = model("linear")
    DEFECTS[defect][0](file)
    x = samples("linear", 16)
    assert codes_apart(run(file, x, optimise=False), run(file, x), [None]) > 2


def test_a_wrong_axis_of_a_convolution_is_found() -> None:
    file = model("outputs")  # its second weight is 4 x 4
    set_attribute("second.weight.dequantize", "axis", 1)(file)
    with pytest.raises(VerificationError, match="second: weight scales along axis 1"):
        check_structure(file, integer_nodes("outputs"))


def test_what_is_no_onnx_is_refused() -> None:
    file = model("linear")
    node(file, "2").op_type = "Gem"
    with pytest.raises(VerificationError, match=r"not well-formed ONNX: .*Gem"):
        check_well_formed(file)
