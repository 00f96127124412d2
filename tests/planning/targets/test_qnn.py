"""QNN: 8 and 16 bits in one model, requantized where they meet."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.formats import open_model
from qtool.backends.onnxruntime.session import run, session
from qtool.core.types import UINT8, UINT16, Fixed, Observed, Requantized, SharedWith
from qtool.evaluation.restored_model import restore
from qtool.planning.plan import Execution, Kind
from tests.planning.targets.converted import captured, network, samples

RECIPES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "one layer": ("residual_concat", [{"select": "second", "activations": "uint16"}]),
    "an add": ("residual_concat", [{"op": "add", "activations": "uint16"}]),
    "a concat": ("residual_concat", [{"op": "concat", "activations": "uint16"}]),
    "the first layer": ("residual_concat", [{"select": "first", "activations": "uint16"}]),
    "all but one": (
        "residual_concat",
        [{"select": "*", "activations": "uint16"}, {"select": "branch", "activations": "uint8"}],
    ),
    "behind a clamp in float": (
        "residual_concat",
        [{"select": "re:first|relu", "as": "float"}, {"select": "second", "activations": "uint16"}],
    ),
    "everything": ("activations", [{"select": "*", "activations": "uint16"}]),
    "4-bit weights": (
        "depthwise",
        [{"select": "*", "activations": "uint16"}, {"op": "conv", "weights": "int4"}],
    ),
}
every = pytest.mark.parametrize("name", list(RECIPES))


@cache
def model(name: str) -> QuantizedModel:
    network, recipe = RECIPES[name]
    return quantize(
        captured(network), [samples(network)], target="qnn", recipe=recipe, accuracy="fast"
    )


@cache
def file(name: str) -> onnx.ModelProto:
    return model(name).to_onnx()


@every
def test_an_operator_reads_and_gives_one_type(name: str) -> None:
    arrays = {i.name: numpy_helper.to_array(i) for i in file(name).graph.initializer}
    nodes = file(name).graph.node
    makers = {o: n for n in nodes for o in n.output}
    types: dict[str, set[str]] = {}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            before = makers.get(node.input[0])
            if before is not None and before.op_type != "DequantizeLinear":
                types.setdefault(before.name, set()).add(str(arrays[node.input[2]].dtype))
        elif node.op_type != "DequantizeLinear":
            for source in (makers[i] for i in node.input if i in makers):
                stored = source.input[0] in arrays  # a weight or a bias
                if source.op_type == "DequantizeLinear" and not stored:
                    types.setdefault(node.name, set()).add(str(arrays[source.input[2]].dtype))
    floats = {d.node for d in model(name).plan.nodes if d.execution is Execution.FLOAT}
    mixed = {n: found for n, found in types.items() if len(found) > 1 and n not in floats}
    assert not mixed
    assert any("uint16" in found for found in types.values())


@every
def test_the_file_computes_what_the_simulation_does(name: str, tmp_path: Path) -> None:
    found = model(name).export(tmp_path / "model.onnx")
    assert found.parity.as_written.worst <= 2
    assert (found.coverage.share == 1.0) is ("float" not in name)


@every
def test_a_file_is_read_back(name: str, tmp_path: Path) -> None:
    model(name).export(tmp_path / "model.onnx", verify=False)
    x = samples(RECIPES[name][0])[:4]
    again = restore(tmp_path / "model.onnx", captured(RECIPES[name][0]), captured_batch(name))
    with torch.no_grad():
        assert torch.equal(again(x), model(name)(x))


def captured_batch(name: str) -> Any:
    from qtool.core.data import Batch

    return Batch((samples(RECIPES[name][0])[:4],))


def test_more_bits_hold_every_code() -> None:
    params = model("one layer").parameters
    narrow, wide = params["relu"], params["relu.uint16"]
    values = narrow.dequantize(torch.arange(256, dtype=torch.uint8))
    torch.testing.assert_close(wide.dequantize(wide.quantize(values)), values, rtol=1e-6, atol=0)


def test_fewer_bits_have_the_range_that_was_seen() -> None:
    model_, again = model("one layer"), model("all but one")
    narrow, wide = model_.parameters["second.uint8"], model_.parameters["second"]
    assert float(narrow.scale) == pytest.approx(257 * float(wide.scale), rel=1e-5)
    assert again.plan.point("relu_2.uint8").spec == Requantized("relu_2", UINT8)


def test_a_concat_shares_with_inputs_of_its_type_alone() -> None:
    plan = model("a concat").plan
    wide = {p.name for p in plan if isinstance(p.spec, Requantized) and p.spec.qtype == UINT16}
    assert wide == {"relu_2.uint16", "relu_3.uint16"}
    shared = [p for p in plan if isinstance(p.spec, SharedWith)]
    assert all(plan.root(p.name) != "cat" for p in shared)


def test_fixed_outputs_are_those_of_the_type() -> None:
    wide, usual = model("everything").plan, captured("activations").plan("qnn")
    assert {p.name for p in wide if isinstance(p.spec, Fixed)} == {"sigmoid", "softmax", "tanh"}
    assert {p.name for p in usual if isinstance(p.spec, Fixed)} == {"softmax"}
    assert all(p.spec.qtype == UINT16 for p in wide if isinstance(p.spec, Fixed))


def test_16_bits_are_nearer_to_the_float_model() -> None:
    x = samples("activations")[:16]
    with torch.no_grad():
        real = network("activations")(x)
        usual = quantize(
            captured("activations"), [samples("activations")], target="qnn", accuracy="fast"
        )
        errors = [float((m(x) - real).abs().mean()) for m in (usual, model("everything"))]
    assert errors[1] < errors[0] / 2


def test_weights_of_linear_layers_have_one_scale() -> None:
    points = [p for p in model("everything").plan if p.kind is Kind.WEIGHT]
    found = {p.name: p.spec.axis for p in points if isinstance(p.spec, Observed)}
    assert found == {
        **dict.fromkeys(("first.weight", "second.weight", "third.weight"), 0),
        "head.weight": None,
    }


def test_onnx_runtime_has_no_kernel_for_16_bits() -> None:
    recipe = [{"select": "second", "activations": "uint16"}]
    found = captured("residual_concat").plan(recipe=recipe).decision("second")
    assert found.execution is Execution.FLOAT
    assert found.reason.startswith("onnxruntime has no kernel for uint16 activations (rule 1")


def test_the_file_holds_16_bits() -> None:
    types = {str(numpy_helper.to_array(i).dtype) for i in file("everything").graph.initializer}
    assert types >= {"uint16", "int8", "int32"}
    assert "uint8" not in types
    assert np.dtype(np.uint16) == UINT16.numpy_dtype


def test_kernels_of_this_cpu_do_not_decide_what_a_file_for_another_one_computes(
    tmp_path: Path,
) -> None:
    """Those of AVX2 add pairs of products in 16 bits, which saturate; QNN's do not."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 8, 3)
    torch.nn.init.uniform_(layer.weight, 0.5, 1)
    data = torch.rand(32, 8, 8, 8)
    path = tmp_path / "model.onnx"
    result = quantize(layer.eval(), [data], target="qnn", accuracy="fast").export(path)
    assert result.fidelity.worst > 35
    assert "as written, not on qnn" in str(result)
    arrays = [data[:4].numpy()]
    here = open_model(path).run(arrays)
    assert np.array_equal(here[0], run(session(path, optimise=False), arrays)[0])
