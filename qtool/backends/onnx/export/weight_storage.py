"""Weights in the form in which a runtime reads them, and the data file that they are in."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx import storage
from qtool.backends.onnx.graph_edits import attributes_of
from qtool.core.atomic import atomic_path

# Lookups of rows in blocks, written with operators that every build of a runtime has.
#
# The build of onnxruntime-web that has WebGPU, which transformers.js loads, has no
# GatherBlockQuantized on its CPU provider: a file with one does not load there on the device `wasm`
# (onnxruntime-web 1.31.0-dev.20260914, transformers.js 4.3).


Values = list[ir.Value | None]
"""Inputs of a node."""


def write_plain_lookups(model: ir.Model) -> None:
    """Write each GatherBlockQuantized of bytes as Gather, Cast, Sub and Mul, in place.

    The values are the same: `f32(code - zero point) * scale`.
    """
    for node in [n for n in model.graph if n.op_type == "GatherBlockQuantized"]:
        if attributes_of(node)["bits"] == 8:
            _write(model.graph, node)


def _write(graph: ir.Graph, lookup: ir.Node) -> None:
    packed, ids, scales, *points = lookup.inputs
    (result,) = lookup.outputs
    nodes: list[ir.Node] = []

    def add(op: str, inputs: Values, **attributes: int) -> ir.Value:
        node = ir.Node("", op, inputs, [ir.AttrInt64(k, v) for k, v in attributes.items()])
        nodes.append(node)
        node.name = f"{lookup.name}/{op}_{len(nodes)}"
        node.outputs[0].name = f"{node.name}/output"
        return node.outputs[0]

    def floats(codes: ir.Value | None) -> ir.Value:
        return add("Cast", [add("Gather", [codes, ids])], to=ir.DataType.FLOAT.value)

    if points and points[0] is not None:
        middle = floats(points[0])
    else:
        middle = ir.Value(
            name=f"{lookup.name}/middle", const_value=ir.tensor(np.array(128, np.float32))
        )
        graph.register_initializer(middle)
    rows = add("Mul", [add("Sub", [floats(packed), middle]), add("Gather", [scales, ids])])
    rows.shape, rows.type = result.shape, result.type
    graph.insert_before(lookup, nodes)
    result.replace_all_uses_with(rows)
    graph.remove(lookup, safe=True)


# Integer weights of linear layers in the order in which a runtime reads them.
#
# WebAssembly has no packed weights, so that onnxruntime-web's QGemm transposes those of a Gemm
# with transB again in every run: a layer of 768 by 768 takes 2.6 times as long for one row, 1.4
# times for 16 (1.30.0; benchmarks/results/2026-11-webassembly.md).


def store_as_read(model: ir.Model) -> None:
    """Store the int8 weights of Gemm as [in, out], in place.

    A weight that several nodes read stays as it is.

    Args:
        model: QDQ model with Gemm layers whose weights are [out, in] (transB).
    """
    for layer in model.graph:
        weight = layer.inputs[1] if layer.op_type == "Gemm" else None
        maker = None if weight is None else weight.producer()
        if weight is None or maker is None or maker.op_type != "DequantizeLinear":
            continue
        codes, transposed = maker.inputs[0], layer.attributes.get("transB")
        stored = None if codes is None else codes.const_value
        if codes is None or stored is None or stored.dtype is not ir.DataType.INT8:
            continue
        is_alone = len(weight.uses()) == len(codes.uses()) == 1
        if transposed is None or not transposed.as_int() or not is_alone:
            continue
        shape = ir.Shape(stored.shape.numpy()[::-1])
        codes.const_value = ir.LazyTensor(
            partial(_transposed, stored), stored.dtype, shape, name=stored.name
        )
        for value in (codes, weight):  # theirs are of the former order
            value.shape = value.type = None
        layer.attributes["transB"] = ir.AttrInt64("transB", 0)
        maker.attributes.pop("axis", None)
        maker.attributes["axis"] = ir.AttrInt64("axis", 1)


def _transposed(stored: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(np.ascontiguousarray(stored.numpy().T))


def write_weights(model: ir.Model, folder: Path, name: str) -> None:
    """Write the weights of a model to the data file of a model of that name, one after the other;
    in the model, they become references to it.

    Args:
        model: its tensors may be read when they are needed.
        folder: folder of the data file.
        name: file name of the model.

    Raises:
        OSError: the file cannot be written.
    """
    stored, places, end = dict[str, ir.Value](), dict[str, tuple[int, int]](), 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        assert value.name is not None
        if tensor.dtype is not ir.DataType.STRING and tensor.nbytes > storage.SMALL:
            stored[value.name], places[value.name] = value, (end, tensor.nbytes)
            end += -(-tensor.nbytes // storage.PAGE) * storage.PAGE
    if not stored:
        return
    digest = hashlib.sha256(repr(places).encode())
    with atomic_path(folder / f"{name}.data") as temporary:
        with temporary.open("wb") as file:
            for key, value in stored.items():
                assert value.const_value is not None
                content = value.const_value.tobytes()
                digest.update(content)
                file.seek(places[key][0])
                file.write(content)
        data = storage.data_file(folder / name, digest.hexdigest()[: storage.DIGITS])
    (folder / f"{name}.data").replace(data)
    for key, value in stored.items():
        tensor = value.const_value
        assert tensor is not None
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            data.name, *places[key], tensor.dtype, shape=shape, name=key, base_dir=folder
        )
