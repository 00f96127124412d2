"""Float nodes run in ONNX Runtime's own kernels, as the graph that the runtime would fuse.

The runtime fuses float operators with each other (an add and the LayerNorm behind it), and a fused
kernel rounds in other places than its parts. So a float part of a model runs as one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper, numpy_helper

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, array_of, name_of, values_read
from qtool.backends.onnxruntime.integer_engine.integer_program import Kernel
from qtool.backends.onnxruntime.session import cpu_session
from qtool.core.errors import KernelError
from qtool.core.types import Array

_SMALL = 1 << 16
"""Bytes up to which a constant is stored in the graph."""
Known = Mapping[str, onnx.ValueInfoProto]


def runtime_graph(
    nodes: Sequence[Node], file: OnnxModel, outputs: Sequence[str], known: Known
) -> tuple[Kernel, tuple[str, ...]]:
    """Return a function that runs nodes of a model in the runtime, and the names of its inputs.

    The function raises KernelError if the runtime refuses the nodes.

    Args:
        nodes: nodes in an order in which they can run.
        file: the model.
        outputs: what the function returns: a tensor, or a tuple if there are several.
        known: types and shapes of the model's tensors, as far as they are known; the runtime does
            not fuse nodes of unknown shapes.
    """
    produced = dict.fromkeys(name_of(o) for n in nodes for o in n.outputs)
    read = {
        name_of(v): array_of(v) for n in nodes for v in values_read(n) if name_of(v) not in produced
    }
    computed = tuple(n for n, array in read.items() if array is None)
    constants = {n: array for n, array in read.items() if array is not None}
    opsets, functions = file.outline.opset_import, file.outline.functions
    version, parts = file.outline.ir_version, [n.message for n in nodes]
    inside = [known[n] for n in produced if n in known and n not in outputs]
    sessions: dict[tuple[Any, ...], ort.InferenceSession] = {}

    def session(types: tuple[Any, ...]) -> ort.InferenceSession:
        if types not in sessions:
            inputs = [_input(known, n, *t) for n, t in zip(computed, types, strict=True)]
            results = [
                known.get(n) or onnx.ValueInfoProto(name=n, type=onnx.TypeProto()) for n in outputs
            ]
            options = ort.SessionOptions()
            stored = _stored(constants, options)
            body = helper.make_graph(parts, "float", inputs, results, stored, value_info=inside)
            model = helper.make_model(body, opset_imports=opsets, functions=functions)
            model.ir_version = version
            options.enable_cpu_mem_arena = False  # an arena per part would keep its peak memory
            sessions[types] = cpu_session(model.SerializeToString(), options)
        return sessions[types]

    if (types := _expected_types(computed, known)) is not None:
        with suppress(Exception):  # raised by the run
            session(types)  # before activations exist, which it would fragment

    def run(*values: torch.Tensor) -> Any:
        arrays = [v.contiguous().numpy() for v in values]
        types = tuple((a.dtype, _declared(a)) for a in arrays)
        try:
            results = session(types).run(None, dict(zip(computed, arrays, strict=True)))
        except Exception as error:
            names = ", ".join(f"{n.name} ({n.op_type})" for n in nodes[:3])
            more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
            raise KernelError(f"{names}{more} cannot be run: {error}") from error
        if any(not isinstance(f, np.ndarray) for f in results):
            raise KernelError(f"{nodes[-1].name} returns a sequence, not a tensor")
        tensors = tuple(map(torch.from_numpy, results))
        return tensors[0] if len(tensors) == 1 else tensors

    return run, computed


def _stored(arrays: Mapping[str, Array], options: ort.SessionOptions) -> list[onnx.TensorProto]:
    """Return the tensors of a graph's constants.

    Large constants are shared with the session: neither copied nor part of the message, which
    holds at most 2 GiB.
    """
    tensors, shared = [], dict[str, ort.OrtValue]()
    for name, array in arrays.items():
        if array.nbytes <= _SMALL or array.dtype.kind not in "fiub":
            tensors.append(numpy_helper.from_array(array, name))
            continue
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="memory")
        tensors.append(tensor)
        shared[name] = ort.OrtValue.ortvalue_from_numpy(array)
    if shared:
        options.add_external_initializers(list(shared), list(shared.values()))
    return tensors


def _expected_types(names: Sequence[str], known: Known) -> tuple[Any, ...] | None:
    """Return the types that a run will have, None if the model does not state them."""
    types: list[tuple[Any, ...]] = []
    for name in names:
        if name not in known or not known[name].type.tensor_type.HasField("shape"):
            return None
        kind = known[name].type.tensor_type
        dtype, sizes = helper.tensor_dtype_to_np_dtype(kind.elem_type), kind.shape.dim
        if len(sizes) == 1 and dtype == np.int64:
            if not sizes[0].dim_value:
                return None
            types.append((dtype, (sizes[0].dim_value,)))
        else:
            types.append((dtype, (None,) * len(sizes)))
    return tuple(types)


def _input(known: Known, name: str, dtype: Any, shape: Sequence[int | None]) -> Any:
    """Return the stated input of this type, else one of the shape that its values have."""
    kind, info = helper.np_dtype_to_tensor_dtype(dtype), known.get(name)
    sizes = any(size is not None for size in shape)
    if info is not None and info.type.tensor_type.elem_type == kind and not sizes:
        return info
    return helper.make_tensor_value_info(name, kind, shape)


def _declared(array: Array) -> tuple[int | None, ...]:
    """Return the shape to declare: open sizes, but the length of a vector of sizes (Resize)."""
    is_sizes = array.ndim == 1 and array.dtype == np.int64
    return array.shape if is_sizes else (None,) * array.ndim
