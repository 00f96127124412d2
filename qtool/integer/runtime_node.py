"""Nodes that stay in float run in ONNX Runtime's own kernel, one node at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper, numpy_helper

from qtool.errors import KernelError
from qtool.integer.qdq import QdqGraph

__all__ = ["runtime_node"]


def runtime_node(
    node: onnx.NodeProto, graph: QdqGraph, index: int = 0
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """A function that gives one output of a node, run in the runtime, and the names of the node's
    computed inputs.

    Raises:
        KernelError: the runtime does not take the node alone.
    """
    computed = tuple(n for n in dict.fromkeys(node.input) if n and n not in graph.arrays)
    stored = [
        numpy_helper.from_array(graph.arrays[n], n) for n in set(node.input) & set(graph.arrays)
    ]
    untyped = onnx.TypeProto()
    made: dict[tuple[Any, ...], ort.InferenceSession] = {}

    def session(types: tuple[Any, ...]) -> ort.InferenceSession:
        if types not in made:
            inputs = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(dtype), sizes)
                for n, (dtype, sizes) in zip(computed, types, strict=True)
            ]
            outputs = [onnx.ValueInfoProto(name=node.output[index], type=untyped)]
            body = helper.make_graph([node], "node", inputs, outputs, stored)
            model = helper.make_model(body, opset_imports=graph.model.opset_import)
            model.ir_version = graph.model.ir_version
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            made[types] = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        return made[types]

    def run(*values: torch.Tensor) -> torch.Tensor:
        arrays = [v.contiguous().numpy() for v in values]
        types = tuple((a.dtype, _sizes(a)) for a in arrays)
        try:
            found = session(types).run(None, dict(zip(computed, arrays, strict=True)))[0]
        except Exception as error:
            raise KernelError(
                f"{node.name} ({node.op_type}) cannot be run alone: {error}"
            ) from error
        if not isinstance(found, np.ndarray):
            raise KernelError(f"{node.name} ({node.op_type}) gives a sequence, not a tensor")
        return torch.from_numpy(found)

    return run, computed


def _sizes(array: np.ndarray[Any, Any]) -> tuple[int | None, ...]:
    """Free for data; fixed for what may be a shape, whose length decides about ranks."""
    return array.shape if array.dtype == np.int64 else (None,) * array.ndim
