"""Loads the network of an ONNX file as an nn.Module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import sympy  # type: ignore[import-untyped]  # it ships no type information
import torch
from onnx import helper
from torch import nn

from qtool.backends.onnx.subgraph import TORCH_TYPES, onnx_part, tensor_of
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import NO_FIXED_INPUTS, FixedInputs
from qtool.core.data.noise_inputs import NOISE, Noise
from qtool.core.errors import CaptureError, DataError
from qtool.core.remedies import Argument, Omission
from qtool.core.types import Array
from qtool.frontends.onnx.external_weights import NO_EXTERNAL_WEIGHTS, ExternalWeights, MappedArray
from qtool.frontends.onnx.node_calls import UnsupportedForm
from qtool.frontends.onnx.open_dimensions import open_dimensions
from qtool.frontends.onnx.read_nodes import OnnxNode, nodes_from_sizes, read_nodes
from qtool.frontends.onnx.runtime_parts import inputs_of, make_part
from qtool.frontends.onnx.shape_operators import cast_types, evaluate_shapes, sizes_as_tensor
from qtool.frontends.onnx.size_branches import SizeBranch, size_branches
from qtool.frontends.onnx.value_names import identifiers
from qtool.frontends.own_models import FileNetwork
from qtool.frontends.torch.shape_decisions import BRANCHES

_SCALARS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_SMALL = 16  # elements; a larger constant of a part is a weight
_CODES = {dtype: code for code, dtype in TORCH_TYPES.items()}
Value = torch.Tensor | Array | None
Values = dict[str, Value]
Decisions = Sequence[tuple[SizeBranch, bool]]


class _NodeModule(nn.Module):
    """One module per node, so that torch.export can name them."""

    def __init__(self, node: OnnxNode) -> None:
        super().__init__()
        self.node = node

    def forward(self, function: Callable[..., Any], *values: Any) -> Any:
        return function(*values)


class OnnxModule(FileNetwork):
    """The network of a file. Its arguments are the file's inputs, in order or by name.

    Attributes, besides those of `FileNetwork`:
        constants: name -> array.
        outputs: names.
        dynamic: input -> {dimension: name}.
        arguments: Python identifier -> input.
        draws: what its nodes drew, inputs now; None if they drew nothing.
        qtool_input_names: the other inputs; batches are dicts of them, labels excepted.
        qtool_fixed_inputs: inputs that became constants; data may still give them.
        qtool_fixed_batch: first size of all inputs, None where it is not fixed.
        nodes: nodes in execution order.
        branches: Ifs that depend on sizes, undecided.
        decisions: Ifs that depend on sizes, and the condition with which they were inlined.
        conditions: conditions on dynamic sizes for these branches, sympy expressions with the
            reason. A set, which `preserve_attributes` does not restore.
        shapes: shapes of all values at the last `observe`.
        from_sizes: value that is computed from sizes -> positions of the nodes that do it.
        fallback: positions of nodes that ONNX Runtime runs.
        untraced: positions of nodes that could not be traced with dynamic sizes.
        reasons: position -> the form of a node that its rule does not support.
        attributes: constant -> attribute that has it as a tensor.
        cast: size tensor -> integer type that the file casts it to.
        qtool_masks: a constant may be infinite: masks are initializers as weights are.
    """

    qtool_masks = True

    def __init__(
        self,
        model: onnx.ModelProto,
        external: ExternalWeights = NO_EXTERNAL_WEIGHTS,
        fixed: FixedInputs = NO_FIXED_INPUTS,
        decisions: Decisions = (),
        notes: tuple[str, ...] = (),
        draws: Noise | None = None,
    ) -> None:
        super().__init__()
        self.notes, self.draws = notes, draws
        self.model, self.external, self.qtool_fixed_inputs = model, external, fixed
        self.decisions, self.conditions = tuple(decisions), set[Any]()
        chosen = {branch.condition: value for branch, value in decisions}
        self.constants, self.nodes, self.source = read_nodes(model, external.arrays, chosen)
        self.branches = size_branches(self.nodes, self.constants)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.from_sizes = nodes_from_sizes(self.nodes, self.constants)
        self.cast = cast_types(p for node in self.nodes for p in node.protos)
        graph = model.graph
        self.outputs = tuple(o.name for o in graph.output)
        stored = {i.name for i in graph.initializer} | set(external.arrays)
        self.inputs = {i.name: i.type.tensor_type for i in graph.input if i.name not in stored}
        self.dynamic = {name: open_dimensions(t) for name, t in self.inputs.items()}
        self.qtool_input_names = tuple(n for n in self.inputs if not draws or n not in draws.names)
        self.qtool_fixed_batch = _fixed_batch(self.inputs.values())
        self.arguments = dict(zip(identifiers(self.inputs), self.inputs, strict=True))
        self.fallback = {i for i, node in enumerate(self.nodes) if node.rule is None}
        self.untraced: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.attributes: dict[str, str] = {}
        for node in self.nodes:
            static = () if node.rule is None else node.rule.static_inputs
            buffers = () if node.rule is None else node.rule.buffers
            for i, name in enumerate(node.inputs):
                if name in self.constants and i not in static and name not in self.attributes:
                    self._register(name, self.constants[name], i not in buffers)
        for name in self.outputs:
            if name in self.constants and name not in self.attributes:
                self._register(name, self.constants[name], False)
        self.steps = nn.ModuleList(_NodeModule(n) for n in self.nodes)
        self.forward = _with_parameters(self._run, list(self.arguments))

    def again(self, decisions: Decisions, noise: Noise | None) -> OnnxModule:
        """Return the module of the same file with other decisions and this noise."""
        parts = self.model, self.external, self.qtool_fixed_inputs
        other = OnnxModule(*parts, decisions, self.notes, self.draws).eval()
        other.path, other.file_bytes = self.path, self.file_bytes
        setattr(other, NOISE, noise)
        return other

    def qtool_with_noise(self) -> OnnxModule:
        """Return the module whose batches get what the nodes of the file draw.

        Raises:
            CaptureError: they draw nothing.
        """
        if self.draws is None:
            raise CaptureError("no node of the graph draws numbers", Omission("--noise-input"))
        return self.again(self.decisions, self.draws)

    def _register(self, name: str, array: Array, trainable: bool) -> None:
        if np.asarray(array).dtype not in _TENSOR_DTYPES:
            return  # strings and 4-bit numbers are stored in a part
        attribute = G.free_name(self, name)
        mapped = isinstance(array, MappedArray)
        data = torch.from_numpy(array) if mapped else tensor_of(np.asarray(array))
        if trainable and data.is_floating_point():
            self.register_parameter(attribute, nn.Parameter(data))
        else:
            self.register_buffer(attribute, data)
        self.attributes[name] = attribute

    def zero_batch(self, samples: int) -> tuple[torch.Tensor, ...]:
        batch = []
        for name, kind in self.inputs.items():
            sizes = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
            if 0 in sizes[1:]:
                raise DataError(
                    f"there is no data, and dimension {sizes.index(0, 1)} of input '{name}' is "
                    "dynamic",
                    Argument("--data"),
                )
            shape = [s or samples for s in sizes]
            batch.append(torch.zeros(shape, dtype=TORCH_TYPES[kind.elem_type]))
        return tuple(batch)

    def notes_on_float(self) -> tuple[str, ...]:
        kept = sorted(self.fallback & self.reasons.keys())
        recurrent = [i for i in kept if self.nodes[i].key in _RECURRENT]
        labels = {i: self.nodes[i].label for i in recurrent}
        return tuple(f"left in float: {labels[i]}, since {self.reasons[i]}" for i in recurrent)

    def in_float32(self, batch: Batch) -> Batch:
        types = {kind.elem_type for kind in self.inputs.values()}
        others = {c for d, c in _CODES.items() if d.is_floating_point and d != torch.float32}
        return batch if types & others else batch.to_float32()

    def observe(self, inputs: Sequence[torch.Tensor], whole: bool = True) -> Values:
        """Return all values on a batch by name, and record their types and ranks.

        Args:
            inputs: tensors in the order of the file's inputs.
            whole: False drops a value after its last reader.
        """
        with torch.no_grad():
            return self._run_nodes(inputs, record=True, whole=whole)

    def run_node(self, index: int, values: Values) -> tuple[Value, ...]:
        """Return the results of one node on the given values."""
        with torch.no_grad():
            return self._run_node(index, values)

    def _run(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        values = self._run_nodes(inputs, whole=False, kept=self._checked_values())
        self._check_decisions(values)
        self._note_squeezes(values)
        tensors = [self.as_tensor(n, values[n]) for n in self.outputs]
        pairs = zip(self.outputs, tensors, strict=True)
        outputs = tuple(t.clone() if n in self.constants else t for n, t in pairs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _checked_values(self) -> frozenset[str]:
        """Return the names of values whose sizes are read after a run."""
        sources = {name for branch, _ in self.decisions for name in branch.sources}
        sources |= {node.inputs[0] for node in self.nodes if _squeezes_any(node)}
        parts = (self.nodes[i] for i in self.fallback)
        steps = {i for part in parts for n in part.inputs for i in self.from_sizes.get(n, ())}
        return frozenset(sources.union(*(self.nodes[i].inputs for i in steps)))

    def _check_decisions(self, values: Values) -> None:
        """Check that the branches of Ifs are right at these sizes."""
        for branch, chosen in self.decisions:
            shapes = {n: v.shape for n in branch.sources if (v := values.get(n)) is not None}
            if shapes.keys() < branch.sources:
                continue  # a value that no node makes any more
            condition = branch.decide(shapes, self.constants)
            symbolic = isinstance(condition, torch.SymBool)
            condition = condition if chosen else torch.sym_not(condition)
            equality = symbolic and isinstance(condition.node.expr, sympy.Equality)
            if equality or not condition:
                raise CaptureError(f"{branch.label} (If) has another branch at other sizes")
            if symbolic:
                self.conditions.add((condition.node.expr, BRANCHES))

    def _note_squeezes(self, values: Values) -> None:
        """Add a condition for each dynamic size that a Squeeze without axes removes where it is 1:
        a traced result has one rank."""
        for node in self.nodes:
            if not _squeezes_any(node):
                continue
            sizes = getattr(values[node.inputs[0]], "shape", ())
            dynamic = (size for size in sizes if isinstance(size, torch.SymInt))
            why = f"{node.label} (Squeeze) has no axes and removes a size of 1; give it its axes"
            self.conditions |= {(sympy.Ne(size.node.expr, 1), why) for size in dynamic}

    def _run_nodes(
        self,
        inputs: Sequence[torch.Tensor],
        record: bool = False,
        whole: bool = True,
        kept: Collection[str] = (),
    ) -> Values:
        values: Values = {"": None, **self.constants}
        values.update(zip(self.inputs, inputs, strict=True))
        if record:
            self._record_types(values)
        last = {n: i for i, node in enumerate(self.nodes) for n in (*node.outputs, *node.inputs)}
        for index, node in enumerate(self.nodes):
            results = dict(zip(node.outputs, self._run_node(index, values, record), strict=False))
            values.update(results)
            if record:
                self._record_types(results)
            for name in () if whole else (*node.inputs, *node.outputs):
                if last[name] == index and name not in self.outputs and name not in kept:
                    values[name] = None
        return values

    def _record_types(self, values: Values) -> None:
        for name, value in values.items():
            self.shapes[name] = tuple(getattr(value, "shape", ()))
            if isinstance(value, torch.Tensor):
                self.source.types[name] = _CODES[value.dtype], value.dim()

    def _run_node(self, index: int, values: Values, record: bool = False) -> tuple[Value, ...]:
        node = self.nodes[index]
        if node.rule is not None and index not in self.fallback:
            inputs, started = [values[n] for n in node.inputs], False
            try:
                arrays = [v for v in inputs if v is None or isinstance(v, np.ndarray)]
                if len(arrays) == len(inputs):
                    sizes = evaluate_shapes(node.key, node.call, arrays)
                    if sizes is not None:
                        return (sizes,)
                mixed = any(isinstance(v, torch.Tensor) for v in inputs)
                arguments = [self._argument(node, i, v, mixed) for i, v in enumerate(inputs)]
                started = True
                result = self.steps[index](node.rule.function, node.call, *arguments)
            except Exception as error:  # a form of the operator that its rule does not support
                if record:
                    self.fallback.add(index)
                    if isinstance(error, UnsupportedForm):
                        self.reasons[index] = str(error).removeprefix(f"{node.label}: ")
                elif started and torch.compiler.is_exporting():
                    self.untraced.add(index)
                    raise  # tracing cannot continue; the caller retries with the node as fallback
            else:
                return result if isinstance(result, tuple) else (result,)
        return self._run_in_runtime(index, node, values)

    def _run_in_runtime(self, index: int, node: OnnxNode, values: Values) -> tuple[Value, ...]:
        """Run a node in ONNX Runtime."""
        tensors: dict[str, torch.Tensor] = {}
        stored: dict[str, Array] = {}
        protos = (*self._computing_sizes(node, values), *node.protos)
        for name in inputs_of(protos):
            value, constant = values[name], self.constants.get(name)
            if constant is not None and (name not in self.attributes or _is_small(constant)):
                stored[name] = constant
            elif isinstance(value, np.ndarray) and all(isinstance(v, int) for v in value.ravel()):
                kind = _CODES[self.cast.get(name, torch.int64)]
                stored[name] = value.astype(helper.tensor_dtype_to_np_dtype(kind))
            else:
                tensors[name] = self.as_tensor(name, value)
        outputs = [o for o in node.outputs if o in self.source.used]
        part = make_part(protos, outputs, list(tensors), stored, self.source, node.label)
        computed = self.steps[index](onnx_part, list(tensors.values()), part.text)
        results = dict(zip(outputs, computed, strict=True))
        return tuple(results.get(o) for o in node.outputs)

    def _computing_sizes(self, node: OnnxNode, values: Values) -> Iterator[onnx.NodeProto]:
        """Yield the nodes with which a part computes the few numbers itself that it reads and that
        follow from sizes, such as how often a Loop runs: its own sizes depend on them."""
        read = [n for n in node.inputs if n in self.from_sizes and _is_dynamic(values[n])]
        steps = [self.nodes[i] for i in sorted({i for n in read for i in self.from_sizes[n]})]
        made = {name for step in steps for name in step.outputs}
        if all(values.get(n) is not None for s in steps for n in s.inputs if n and n not in made):
            for position, proto in enumerate(p for step in steps for p in step.protos):
                renamed = onnx.NodeProto()
                renamed.CopyFrom(proto)
                renamed.name = f"{node.label}/sizes{position}"
                yield renamed

    def _argument(self, node: OnnxNode, index: int, value: Value, mixed: bool) -> Any:
        """Return a value as a rule takes it: sizes as arrays, constants as tensors.

        A scalar constant becomes a number if another operand is a tensor (`mixed`).
        """
        assert node.rule is not None
        if index in node.rule.static_inputs:
            if isinstance(value, torch.Tensor):
                raise UnsupportedForm(f"input '{node.inputs[index]}' is computed from data")
            return value
        if not isinstance(value, np.ndarray):
            return value
        sizes = value.dtype == object
        if mixed and node.key in _SCALARS and (value.size == 1 if sizes else value.ndim == 0):
            return value.item()
        if node.key == "Gather" and index == 1 and value.ndim == 0 and not sizes:
            return value
        return self.as_tensor(node.inputs[index], value)

    def as_tensor(self, name: str, value: Any) -> torch.Tensor:
        """Return a value as a tensor; sizes and constants are arrays."""
        if not isinstance(value, np.ndarray):
            tensor: torch.Tensor = value
            return tensor
        if name in self.attributes:
            stored: torch.Tensor = getattr(self, self.attributes[name])
            return stored
        if value.dtype != object:
            return tensor_of(value)
        return sizes_as_tensor(value, self.cast.get(name, torch.int64))


_TENSOR_DTYPES = frozenset(np.dtype(helper.tensor_dtype_to_np_dtype(code)) for code in TORCH_TYPES)


def _is_dynamic(value: Value) -> bool:
    """Return whether a value has a few numbers that are not known while tracing."""
    if isinstance(value, torch.Tensor):
        sizes = value.shape
        return all(isinstance(n, int) for n in sizes) and value.numel() <= _SMALL
    return value is not None and not all(isinstance(v, int) for v in value.ravel())


def _is_small(array: Array) -> bool:
    return (array.dtype.kind in "iub" and array.size <= 1024) or array.size <= _SMALL


def _squeezes_any(node: OnnxNode) -> bool:
    """Return whether a node is a Squeeze without axes, which removes each size of 1."""
    return node.key == "Squeeze" and len(node.inputs) == 1 and not node.call.get("axes")


def _fixed_batch(inputs: Iterable[onnx.TypeProto.Tensor]) -> int | None:
    first = [kind.shape.dim[0] if kind.shape.dim else None for kind in inputs]
    sizes = {int(d.dim_value) if d is not None and d.HasField("dim_value") else 0 for d in first}
    size = next(iter(sizes)) if len(sizes) == 1 else 0
    return size if size > 0 else None


def _with_parameters(run: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """Return `run` with named parameters for torch.export."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in names])

    def forward(*args: Any, **kwargs: Any) -> Any:
        return run(*signature.bind(*args, **kwargs).arguments.values())

    forward.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return forward
