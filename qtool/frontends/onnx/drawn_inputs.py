"""Random numbers that the nodes of a file draw, as inputs of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import torch
from onnx import helper

from qtool.backends.onnx.subgraph import tensor_of, unoptimized_session
from qtool.core.data import Batch
from qtool.core.data.noise_inputs import Noise, noise_names, seed_of
from qtool.frontends.onnx.node_calls import Array
from qtool.frontends.onnx.runtime_values import open_file

DRAWS = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli")  # or ...Like
_TYPES = onnx.TensorProto.DataType


def take_draws(model: onnx.ModelProto) -> Noise | None:
    """Turn what the nodes of a file draw into inputs behind its others, in place.

    Returns:
        What has ONNX Runtime draw for a batch; None if no node of the graph itself draws.
    """
    nodes = [n for n in model.graph.node if n.op_type.removesuffix("Like") in DRAWS]
    if not nodes:
        return None
    drawing = onnx.ModelProto()
    drawing.CopyFrom(model)
    del drawing.graph.output[:]
    drawing.graph.output.extend(onnx.ValueInfoProto(name=n.output[0]) for n in nodes)
    stored = {i.name for i in model.graph.initializer}
    kinds = {i.name: i.type.tensor_type for i in model.graph.input if i.name not in stored}
    names = noise_names(len(nodes), kinds)
    drawn = unoptimized_session(drawing).get_outputs()
    for node, name, output in zip(nodes, names, drawn, strict=True):
        code = _TYPES.Value(output.type.removeprefix("tensor(").removesuffix(")").upper())
        model.graph.input.append(helper.make_tensor_value_info(name, code, output.shape or None))
        node.CopyFrom(helper.make_node("Identity", [name], node.output, node.name))

    def draw(batch: Batch) -> Mapping[str, torch.Tensor]:
        _seed(drawing, seed_of(batch))
        tensors = dict(zip(kinds, batch.args, strict=False)) | batch.kwargs
        values = open_file(drawing)({k: _array(t, kinds[k]) for k, t in tensors.items()})
        return dict(zip(names, map(tensor_of, values.values()), strict=True))

    return Noise(names, draw)


def _seed(model: onnx.ModelProto, seed: int) -> None:
    """Give each drawing node a seed of its own."""
    for index, node in enumerate(model.graph.node):
        if node.op_type.removesuffix("Like") in DRAWS:
            others = [a for a in node.attribute if a.name != "seed"]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("seed", float(seed + index))])


def _array(tensor: torch.Tensor, kind: Any) -> Array:
    return tensor.numpy(force=True).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
