"""A subgraph of an ONNX file as one torch operator, for nodes that qtool has no reader for.

`qtool::onnx_part(inputs, part)` holds the nodes as text: operators of any domain, with control flow
or sequences. ONNX Runtime runs them; export writes them back
(qtool/backends/onnx/export/kept_parts.py). Output sizes that depend on dynamic sizes are found by
running at several sizes and fitting an expression.
"""

from __future__ import annotations

import base64
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import helper

from qtool.backends.onnx.graph_macs import model_macs
from qtool.backends.onnx.loops import DeadlineError, run_within
from qtool.backends.onnx.nested_graphs import nested_nodes
from qtool.core.errors import CaptureError
from qtool.core.graph.file_parts import FilePart, TensorSizes, register_file_part
from qtool.core.graph.symbolic_sizes import Sizes, symbolic_sizes
from qtool.core.types import Array

if TYPE_CHECKING:
    import onnxruntime as ort


_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
TORCH_TYPES: Mapping[int, torch.dtype] = {
    helper.np_dtype_to_tensor_dtype(np.dtype(name)): getattr(torch, name)
    for name in _NUMBERS.split()
}
"""ONNX element types of inputs and outputs; others occur only inside a subgraph."""


@dataclass(frozen=True)
class OnnxSubgraph:
    """Nodes of a file as a small model.

    Attributes:
        model: its inputs are the tensors that the nodes read, in order. Every output has an element
            type of TORCH_TYPES and a rank.
    """

    model: onnx.ModelProto

    @cached_property
    def text(self) -> str:
        """The argument in the torch graph; equal nodes have equal texts."""
        data = self.model.SerializeToString(deterministic=True)
        return base64.b85encode(zlib.compress(data, 9)).decode()

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.model.graph.input)

    @cached_property
    def outputs(self) -> tuple[tuple[torch.dtype, int], ...]:
        """(element type, rank) of each output."""
        types = [o.type.tensor_type for o in self.model.graph.output]
        return tuple((TORCH_TYPES[t.elem_type], len(t.shape.dim)) for t in types)

    @cached_property
    def _has_scan(self) -> bool:
        return any(n.op_type == "Scan" for n in nested_nodes(self.model.graph.node))

    @cached_property
    def kind(self) -> str:
        """Its operators for messages: "TopK", "SplitToSequence+ConcatFromSequence"."""
        return "+".join(dict.fromkeys(n.op_type for n in self.model.graph.node))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs that ONNX Runtime computes.

        Raises:
            CaptureError: the runtime rejects the nodes or fails on these values.
        """
        if self._has_scan and not all(a.size for a in arrays):  # it may end the process
            raise CaptureError(f"{self.model.graph.name} ({self.kind}) scans an empty sequence")
        types = tuple((helper.np_dtype_to_tensor_dtype(a.dtype), None) for a in arrays)
        try:
            feed = dict(zip(self.inputs, map(np.ascontiguousarray, arrays), strict=True))
            feed = {n: a.reshape(b.shape) for (n, a), b in zip(feed.items(), arrays, strict=True)}
            outputs: list[Array] = run_within(self._session(types), feed, self.model.graph)
        except DeadlineError:
            raise
        except Exception as error:
            raise self._runtime_error(error) from error
        return outputs

    def sizes(self, inputs: Sequence[tuple[int, tuple[int, ...]]]) -> list[Sizes]:
        """Return the sizes of the outputs; None for a size that depends on values.

        A run counts where it differs from the inferred shapes (of dilated pools with "same"
        padding, for instance).

        Args:
            inputs: (ONNX element type, sizes) of each.
        """
        key = tuple(inputs)
        if key not in self._known_sizes:  # a capture asks many times, and a run may be a long loop
            self._known_sizes[key] = self._sizes(key)
        return self._known_sizes[key]

    @cached_property
    def _known_sizes(self) -> dict[tuple[tuple[int, tuple[int, ...]], ...], list[Sizes]]:
        return {}

    def _sizes(self, inputs: Sequence[tuple[int, tuple[int, ...]]]) -> list[Sizes]:
        try:
            shapes = [o.shape for o in self._session(tuple(inputs)).get_outputs()]
        except Exception as error:
            raise self._runtime_error(error) from error
        inferred = [
            _inferred(shape, rank) for shape, (_, rank) in zip(shapes, self.outputs, strict=True)
        ]
        runs = self._sizes_of_runs(inputs)
        if all(size is not None for sizes in inferred for size in sizes):
            first = next(runs)
            if first is None or first == inferred:
                return inferred
            runs = itertools.chain([first], runs)
            inferred = [(None,) * rank for _, rank in self.outputs]
        sizes_of_runs = [sizes for sizes in runs if sizes is not None]
        constant = [
            _constant_sizes([run[i] for run in sizes_of_runs]) for i in range(len(inferred))
        ]
        return [
            tuple(a if a is not None else b for a, b in zip(sizes, run, strict=True))
            for sizes, run in zip(inferred, constant, strict=True)
            if run is not None
        ] or inferred

    def _sizes_of_runs(self, inputs: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[Any]:
        """Yield the output sizes for several values; None if the runtime fails on them."""
        random = np.random.default_rng(0)
        for make in (np.zeros, np.ones, random.random):
            arrays = [
                np.asarray(make(sizes)).astype(helper.tensor_dtype_to_np_dtype(kind))
                for kind, sizes in inputs
            ]
            try:
                shapes = [a.shape for a in self.run(arrays)]
                ranks = [rank for _, rank in self.outputs]  # a Loop that never ran gives others
                yield shapes if [len(shape) for shape in shapes] == ranks else None
            except DeadlineError:  # on values that are made up
                return
            except CaptureError:
                yield None

    def _session(self, types: tuple[Any, ...]) -> ort.InferenceSession:
        return _session(self.text, types)

    def _runtime_error(self, error: Exception) -> CaptureError:
        name = self.model.graph.name
        return CaptureError(
            f"ONNX Runtime cannot run {name} ({self.kind}): {runtime_message(error)}"
        )


_CODE = r"^\[ONNXRuntimeError\] : \d+ : \w+ : "
_PREFIXES = (
    _CODE,
    r"^Exception during initialization: ",
    r"^/\S+:\d+ .*?\) (\[with [^]]*\] )?(?=[A-Z[(])",
    _CODE,
    r"^\w+\.(h|cc):\d+ \w+ ",
)


def runtime_message(error: Exception) -> str:
    """Return the runtime's message without its error codes, source lines and C++ signatures."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    line = " ".join((first, *map(str.strip, others))) if first.endswith(":") else first
    for prefix in _PREFIXES:
        line = re.sub(prefix, "", line)
    return line


def _inferred(shape: Sequence[Any], rank: int) -> Sizes:
    """Return the sizes that the runtime inferred; all None if it inferred another rank, or none."""
    if len(shape) != rank:
        return (None,) * rank
    return tuple(s if isinstance(s, int) else None for s in shape)


def _constant_sizes(runs: Sequence[tuple[int, ...]]) -> Sizes | None:
    """Return the sizes that are equal in all runs; None with fewer than two runs."""
    if len(runs) < 2:
        return None
    return tuple(s if all(run[i] == s for run in runs) else None for i, s in enumerate(runs[0]))


@lru_cache(maxsize=1024)
def subgraph_of(text: str) -> OnnxSubgraph:
    return OnnxSubgraph(onnx.ModelProto.FromString(zlib.decompress(base64.b85decode(text))))


@lru_cache(maxsize=512)
def _session(text: str, types: tuple[Any, ...]) -> ort.InferenceSession:
    model = onnx.ModelProto()
    model.CopyFrom(subgraph_of(text).model)
    for info, (kind, sizes) in zip(model.graph.input, types, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, sizes))
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")  # the runtime infers it
    return unoptimized_session(model)


def unoptimized_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """Return an ONNX Runtime session without graph optimizations, on one thread.

    Args:
        model: a model or the path of a file.

    Raises:
        Exception: any that the runtime raises if it rejects the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(
        data, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def _run(inputs: list[torch.Tensor], part: str) -> list[torch.Tensor]:
    arrays = [t.detach().cpu().numpy() for t in inputs]
    device = inputs[0].device if inputs else torch.device("cpu")
    return [tensor_of(a).to(device) for a in subgraph_of(part).run(arrays)]


def tensor_of(array: Array) -> torch.Tensor:
    """Return a copy as a tensor. The runtime has a second 64-bit type that torch does not take."""
    return torch.from_numpy(np.array(array).view(np.dtype(array.dtype.str)))


def _fake(inputs: list[torch.Tensor], part: str) -> list[torch.Tensor]:
    subgraph = subgraph_of(part)
    codes = {dtype: code for code, dtype in TORCH_TYPES.items()}
    kinds = [codes[t.dtype] for t in inputs]

    def at(shapes: Sequence[tuple[int, ...]]) -> list[Sizes]:
        return subgraph.sizes(list(zip(kinds, shapes, strict=True)))

    sizes = symbolic_sizes(at, [tuple(t.shape) for t in inputs])
    device = inputs[0].device if inputs else torch.device("cpu")
    return [
        torch.empty([_unknown() if s is None else s for s in each], dtype=dtype, device=device)
        for each, (dtype, _) in zip(sizes, subgraph.outputs, strict=True)
    ]


def _unknown() -> Any:
    """Return a size that is known only when the model runs."""
    return torch.library.get_ctx().new_dynamic_size()


_lib = torch.library.Library("qtool", "FRAGMENT")
_lib.define("onnx_part(Tensor[] inputs, str part) -> Tensor[]")
_lib.impl("onnx_part", _run, "CompositeExplicitAutograd")
_lib.impl("onnx_part", torch.library.fallthrough_kernel, "Autograd")  # results without gradient
torch.library.register_fake("qtool::onnx_part", _fake, lib=_lib)
onnx_part: torch._ops.OpOverload = torch.ops.qtool.onnx_part.default
"""The nodes of `part` (OnnxSubgraph.text) on the tensors that they read."""


def _file_part(text: str) -> FilePart:
    part = subgraph_of(text)
    places = {name: i for i, name in enumerate(part.inputs)}
    first = part.model.graph.node[:1]
    operands = [places.get(name) for node in first for name in node.input]
    return FilePart(part.kind, operands, partial(_macs, part))


def _macs(
    part: OnnxSubgraph, inputs: Sequence[TensorSizes], values: Sequence[torch.Tensor | None]
) -> int | None:
    codes = {dtype: code for code, dtype in TORCH_TYPES.items()}
    arrays = [None if v is None else v.numpy() for v in values]
    return model_macs(part.model, [(codes[kind], sizes) for kind, sizes in inputs], arrays)


register_file_part(onnx_part, _file_part)
