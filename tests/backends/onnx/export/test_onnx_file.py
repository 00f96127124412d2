"""The exported file: well formed, integer, readable, and the same function at every batch size."""

import json
import logging
import re
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from qtool.api.conversion import quantize
from qtool.backends.onnx.export import to_onnx
from qtool.core.errors import ExportError
from qtool.frontends.captured_model import capture_model
from qtool.planning.targets import target
from tests.backends.onnx.export.networks import (
    NETWORKS,
    Applied,
    assert_same_codes,
    computing,
    float_file,
    model,
    network,
    optimised,
    quantized,
    run,
    samples,
)

every = pytest.mark.parametrize("name", list(NETWORKS))
X86 = target("onnxruntime")


def initializers(file: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}


def makers(file: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {o: n for n in file.graph.node for o in n.output}


def integer_layers(name: str) -> Iterator[onnx.NodeProto]:
    yield from (n for n in model(name).graph.node if n.op_type in ("Conv", "Gemm"))


@every
def test_the_checker_accepts_the_file(name: str) -> None:
    file = model(name)
    onnx.checker.check_model(file, full_check=True)
    assert file.ir_version == 10
    assert {(o.domain, o.version) for o in file.opset_import} == {("", X86.file.opset)}


@every
@pytest.mark.parametrize("batch", [1, 17])
def test_the_file_computes_what_the_model_does(name: str, batch: int) -> None:
    x = samples(name, batch, seed=batch)
    assert_same_codes(quantized(name), model(name), x, NETWORKS[name].tolerance)


@every
def test_the_runtime_computes_in_integers(name: str) -> None:
    assert computing(optimised(model(name)).graph) == NETWORKS[name].runs_as


@every
def test_weights_are_int8_and_biases_int32(name: str) -> None:
    file = model(name)
    arrays, made = initializers(file), makers(file)
    layers = list(integer_layers(name))
    assert layers
    for node in layers:
        weight = made[node.input[1]]
        codes, scale, zero = (arrays[i] for i in weight.input)
        assert (codes.dtype, zero.dtype) == (np.int8, np.int8)
        assert codes.min() >= -127
        assert not zero.any()
        assert scale.shape == codes.shape[:1]
        assert helper.get_node_attr_value(weight, "axis") == 0
        if len(node.input) > 2:
            bias = made[node.input[2]]
            assert arrays[bias.input[0]].dtype == np.int32
            x = arrays[made[node.input[0]].input[1]]
            assert arrays[bias.input[1]].tolist() == (x * scale).tolist()


@every
def test_parameters_of_activations_are_scalars(name: str) -> None:
    file = model(name)
    arrays = initializers(file)
    nodes = [n for n in file.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    activations = [n for n in nodes if n.input[0] not in arrays]
    assert activations
    for node in activations:
        scale, zero = arrays[node.input[1]], arrays[node.input[2]]
        assert (scale.shape, scale.dtype) == ((), np.float32)
        assert (zero.shape, zero.dtype) == ((), np.uint8)


@every
def test_no_float_weight_is_left(name: str) -> None:
    file = model(name)
    kept = {"up.bias"} if name == "conv_transpose" else set()
    of_type = (i for i in file.graph.initializer if i.data_type == TensorProto.FLOAT)
    floats = {i.name for i in of_type if prod(i.dims) > 1}  # a number is no weight
    assert {n for n in floats if not n.endswith(".scale")} == kept


@every
def test_names_are_those_of_the_model(name: str) -> None:
    file, row = model(name), NETWORKS[name]
    assert [i.name for i in file.graph.input] == list(row.input_names)
    assert [o.name for o in file.graph.output] == list(row.outputs)
    nodes = [n.name for n in file.graph.node]
    assert len(set(nodes)) == len(nodes)
    assert all(nodes)
    assert set(row.modules) <= set(nodes)
    quantized_layers = {n.name for n in integer_layers(name)}
    assert {f"{n}.weight.codes" for n in quantized_layers} <= set(initializers(file))


@every
def test_the_leading_dimension_is_called_batch(name: str) -> None:
    file = model(name)
    for value in (*file.graph.input, *file.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@every
def test_the_file_holds_no_path_and_no_trace_of_the_exporter(name: str) -> None:
    file = model(name)
    assert not [n.name for n in file.graph.node if "stack" in n.name or n.metadata_props]
    assert not any(n.doc_string for n in file.graph.node)
    text = str(file)
    assert not re.search(r'File "|\.py|site-packages|nn_module_stack|pkg\.torch', text)
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text


def test_metadata_says_who_made_the_file_and_what_was_planned() -> None:
    found = {p.key: p.value for p in model("conv_transpose").metadata_props}
    plan = quantized("conv_transpose").plan
    keys = ("version", "target", "plan", "observer", "nodes", "recipe", "origin")
    assert set(found) == {f"qtool_{key}" for key in keys}
    assert (found["qtool_target"], found["qtool_plan"]) == ("onnxruntime", plan.digest)
    rows = {row["node"]: row for row in json.loads(found["qtool_nodes"])}
    assert rows["conv"]["form"] == "integer"
    assert rows["up"]["form"] == "weights"
    assert "ConvTranspose" in rows["up"]["reason"]
    assert sum(r["macs"] for r in rows.values()) == NETWORKS["conv_transpose"].macs


def test_a_value_returned_twice_and_an_input_returned_are_outputs_of_their_own() -> None:
    x = samples("outputs", 3)
    middle, last, again, given = run(model("outputs"), x)
    assert np.array_equal(last, again)
    assert middle.min() == 0 < middle.max()  # behind the ReLU that is fused into its layer
    # The input is read by an integer layer alone, so it is returned as it came, not rounded.
    assert np.array_equal(given, x[0].numpy())


def test_a_shared_module_keeps_one_copy_of_its_weights() -> None:
    shared = Applied(lambda m, x: m.conv(m.conv(x).relu()), conv=nn.Conv2d(4, 4, 3, padding=1))
    file = quantize(shared.eval(), [torch.randn(4, 4, 8, 8)], accuracy="fast").to_onnx()
    weights = [i for i in file.graph.initializer if i.data_type == TensorProto.INT8 and i.dims]
    assert [list(w.dims) for w in weights if len(w.dims) == 4] == [[4, 4, 3, 3]]
    assert computing(optimised(file).graph) == {"QLinearConv": 2}


@every
def test_the_float_file_is_the_float_model(name: str) -> None:
    file = onnx.load_from_string(float_file(name))
    onnx.checker.check_model(file, full_check=True)
    x = samples(name, 3)
    with torch.no_grad():
        found = network(name)(*x)
    expected = list(found.values()) if isinstance(found, dict) else [found]
    for a, b in zip(expected, run(file, x), strict=True):
        np.testing.assert_allclose(b, a.numpy(), rtol=1e-4, atol=1e-5)


def test_an_operator_without_onnx_form_is_named() -> None:
    net = Applied(lambda m, x: torch.linalg.inv(x)).eval()
    captured = capture_model(net, torch.eye(3).repeat(2, 1, 1))
    with pytest.raises(ExportError, match="linalg_inv"):
        to_onnx(captured.graph.module, captured.graph, 18, {})


def test_exporting_leaves_loggers_and_warnings_as_they_were() -> None:
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    before = [logging.getLogger(n).level for n in names], list(warnings.filters)
    quantized("linear").to_onnx()
    assert ([logging.getLogger(n).level for n in names], list(warnings.filters)) == before
