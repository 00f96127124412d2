"""An ONNX model without its quantization, where only the quantized file is available."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass

from qtool.backends.onnx.graph_edits import EditedModel, attributes_of
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnx.storage import save
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.core.errors import VerificationError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import Argument

FLOAT_MODEL = Argument("--model", text="pass its float model with {}")


def write_float(source: Path, path: Path) -> Path:
    """Write a QDQ file without quantization; see `ModelFile.write_float`."""
    save(remove_quantization(source), path)
    return path


def remove_quantization(path: str | Path) -> onnx.ModelProto:
    """Return a QDQ model without QuantizeLinear and DequantizeLinear, on its rounded weights.

    Replaces the float model if only the quantized file is available.

    Raises:
        VerificationError: the file is not a QDQ model.
        KernelError: scales of a weight do not fit it.
    """
    file = OnnxModel.of(path)
    graph, ends = QdqGraph(file), ("QuantizeLinear", "DequantizeLinear")
    edited = EditedModel(file)
    rounded = [n for n in file.nodes if n.op_type in ends]
    if not any(n.op_type == ends[0] for n in rounded):
        raise VerificationError(f"{path} has no QuantizeLinear nodes", FLOAT_MODEL)
    for node in rounded:
        if len(node.inputs) < 2 or not node.outputs:
            raise VerificationError(f"the graph is invalid: {node.name} lacks inputs or outputs")
        output, source = edited.node(node).outputs[0], edited.node(node).inputs[0]
        if node.op_type == ends[1]:
            _make_float(edited.model, source, graph.params(node))
        codes = graph.codes(node.outputs[0])
        if codes is not None and codes.constant is not None:
            real = codes.dequantize().numpy()
            source = ir.Value(name=f"{output.name}/float", const_value=ir.Tensor(real))
            edited.model.graph.register_initializer(source)
        if source is None or source is output:
            raise VerificationError(f"the graph is invalid: '{output.name}' depends on itself")
        _replace_value(output, source)
    RemoveUnusedNodesPass()(edited.model)
    return ir.to_proto(edited.model)


def _make_float(model: ir.Model, codes: ir.Value | None, params: QuantParams) -> None:
    """Give operators on codes, which move them, constants in float.

    Args:
        model: changed in place.
        codes: what a DequantizeLinear reads.
        params: its parameters.

    Raises:
        VerificationError: the constants have parameters for each channel.
    """
    maker = None if codes is None else codes.producer()
    if codes is None or maker is None or maker.op_type in ("QuantizeLinear", "Constant"):
        return
    kind = np.dtype(params.qtype.numpy_dtype)
    if maker.op_type == "Pad" and _lacks_fill(maker) and _pads_with_codes(maker):
        zero = ir.Value(name=f"{maker.name}/code", const_value=ir.Tensor(np.zeros((), kind)))
        model.graph.register_initializer(zero)
        maker.resize_inputs(max(len(maker.inputs), 3))
        maker.replace_input_with(2, zero)
    stored = ir.DataType.from_numpy(kind)
    for index, value in enumerate(maker.inputs):
        if value is not None and value.dtype not in (None, stored):
            continue  # sizes and indices, which are no codes
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        array = None if tensor is None else tensor.numpy()
        if array is None:
            _make_float(model, value, params)
        elif array.dtype == kind:
            if params.axis is not None:
                raise VerificationError(
                    f"{maker.name} moves codes with a scale for each channel", FLOAT_MODEL
                )
            real = params.dequantize(torch.from_numpy(np.array(array))).numpy()
            name = f"{maker.name}/{index}/float"
            constant = ir.Value(name=name, const_value=ir.Tensor(real))
            model.graph.register_initializer(constant)
            maker.replace_input_with(index, constant)
    for output in maker.outputs:
        if output.dtype == stored:
            output.dtype = ir.DataType.FLOAT


def _lacks_fill(pad: ir.Node) -> bool:
    return len(pad.inputs) < 3 or pad.inputs[2] is None


def _pads_with_codes(node: ir.Node) -> bool:
    return bool(attributes_of(node).get("mode", "constant") == "constant")


def _replace_value(value: ir.Value, source: ir.Value) -> None:
    """Let all consumers of a value read `source`; a graph output keeps its name."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    if value.is_graph_output():
        node = ir.Node("", "Identity", [source], name=f"{value.name}/Identity")
        output = node.outputs[0]
        output.name, output.type, output.shape = value.name, value.type, value.shape
        value.name = f"{value.name}/rounded"
        graph.append(node)
        for i, each in enumerate(graph.outputs):
            if each is value:
                graph.outputs[i] = output
    value.replace_all_uses_with(source)
