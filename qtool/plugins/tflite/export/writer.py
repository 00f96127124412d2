"""The state of a model while it is written, and what every operator needs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]  # it ships no type information
import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import Argument, ModelEdit
from qtool.core.types import Bounds
from qtool.planning.plan import QuantPlan
from qtool.plugins.tflite.conversion_record import StoredPoint
from qtool.plugins.tflite.export.graph_builder import GraphBuilder, quantization
from qtool.plugins.tflite.export.values import Cache, Order, Parts, Stored, Value, identity

DTYPES: Mapping[torch.dtype, str] = {
    getattr(torch, name): name
    for name in ("float32", "int64", "int32", "bool", "int8", "int16", "uint8")
}
FIXED_BATCH = (
    Argument("--target", "tflite-micro", "convert it for a fixed batch, with {}"),
    ModelEdit("capture the model for one sample"),
)
"""Remedies for sizes that follow the batch."""
_FAR = 2.0**30  # codes
_ACTIVATION_NUMBERS: Mapping[Bounds, int] = {
    (None, None): 0,
    (0.0, None): 1,
    (-1.0, 1.0): 2,
    (0.0, 6.0): 3,
}


@dataclass
class Writer:
    """A model while it is written.

    Attributes:
        module: the QDQ graph.
        plan: plan of the graph.
        batch: the symbols of the batch, which may be dynamic.
        fixed: the batch is 1 and no size is dynamic.
        builder: tensors and operators so far.
        values: node -> its value.
        cache: copies of values.
        constants: name of codes -> where they are stored.
        dynamic_weights: name of the dequantize that a weight of a dynamic layer would have -> where
            its codes are stored.
        layers: index of a tensor with another name than its layer -> the layer.
        parts: name of a quantize -> the tensors that hold its codes together.
        split_outputs: linear layer -> number of int8 tensors that its float output is the sum of.
    """

    module: fx.GraphModule
    plan: QuantPlan
    batch: frozenset[Any]
    fixed: bool = False
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    values: dict[fx.Node, Value | Stored] = field(default_factory=dict)
    cache: Cache = field(default_factory=Cache)
    constants: dict[str, StoredPoint] = field(default_factory=dict)
    layers: dict[int, str] = field(default_factory=dict)
    dynamic_weights: dict[str, StoredPoint] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    split_outputs: dict[fx.Node, int] = field(default_factory=dict)

    # --- sizes ---------------------------------------------------------------------------------

    def size(self, size: Any) -> int:
        """Return a size as a number: 1 for the batch, that of the example for others."""
        if not isinstance(size, torch.SymInt) or size.node.maybe_as_int() is not None:
            return int(size)
        expression = size.node.expr.xreplace(dict.fromkeys(self.batch, sympy.Integer(1)))
        expression = expression.xreplace(dict(size.node.shape_env.backed_var_to_val))
        return G.hint(size) if expression.free_symbols else int(expression)

    def is_dynamic(self, size: Any) -> bool:
        """Return whether a size follows the batch."""
        if self.fixed or not isinstance(size, torch.SymInt):
            return False
        return bool(size.node.expr.free_symbols & self.batch)

    def number(self, value: Any) -> Any:
        """Return a size or number among the arguments of a call, which may be a node."""
        return self.size(G.value(value)) if isinstance(value, fx.Node) else value

    # --- values --------------------------------------------------------------------------------

    def tensor_like(
        self,
        name: str,
        node: fx.Node | Value,
        order: Order | None = None,
        params: QuantParams | None = None,
    ) -> Value:
        """Add a tensor with the sizes and the type of a node or value."""
        if isinstance(node, Value):
            sizes, dynamic, dtype = node.sizes, node.dynamic, node.dtype
            order = node.order if order is None else order
        else:
            fake = G.value(node)
            sizes = tuple(map(self.size, fake.shape))
            dynamic = tuple(map(self.is_dynamic, fake.shape))
            dtype = DTYPES.get(fake.dtype, "")
            if not dtype:
                raise ExportError(
                    f"{G.name_of(node)} is {str(fake.dtype).removeprefix('torch.')}, which qtool "
                    "does not write to TFLite files",
                    ModelEdit("use float32, int32, int64 or bool"),
                )
        return self.tensor(name, sizes, dynamic, order or identity(len(sizes)), params, dtype)

    def tensor(
        self,
        name: str,
        sizes: Sequence[int],
        dynamic: Sequence[bool],
        order: Order,
        params: QuantParams | None = None,
        dtype: str = "float32",
    ) -> Value:
        """Add a tensor; sizes are those of the graph's axes."""
        shape, moves = [sizes[i] for i in order], [dynamic[i] for i in order]
        index = self.builder.tensor(name, shape, moves, params, dtype)
        kind = self.builder.tensors[index].type
        return Value(index, tuple(sizes), tuple(dynamic), order, params, kind)

    def argument(self, argument: fx.node.Argument) -> Value | Stored:
        """Return the value of an argument of a call; numbers become constants."""
        if isinstance(argument, fx.Node):
            value = self.values.get(argument)
            if value is not None:
                return value
            argument = self.number(argument)
        number = torch.tensor(
            argument, dtype=torch.float32 if isinstance(argument, float) else None
        )
        return Stored("number", number)

    def as_tensor(self, argument: fx.node.Argument) -> Value:
        """Return an argument as a tensor: a constant is stored as one."""
        value = self.argument(argument)
        return (
            value if isinstance(value, Value) else self.constant(value, identity(value.data.dim()))
        )

    def constant(self, constant: Stored, order: Order) -> Value:
        """Store a constant in a layout."""
        if constant.follows_batch:
            raise ExportError(
                f"{constant.name}: a constant of the size of the batch cannot be written to TFLite"
            )
        data = constant.data.detach()
        sizes = tuple(data.shape)
        array = np.ascontiguousarray(data.permute(*order).numpy() if order else data.numpy())
        quantized = None if constant.params is None else quantization(constant.params)
        index = self.builder.constant(constant.name, array, quantized)
        self.store(constant, index, order)
        dynamic = (False,) * len(sizes)
        return Value(index, sizes, dynamic, order, constant.params, str(array.dtype))

    def scalar(self, name: str, number: Any, dtype: torch.dtype = torch.float32) -> Value:
        """Return a constant without dimensions."""
        return self.constant(Stored(name, torch.tensor(number, dtype=dtype)), ())

    def store(
        self, constant: Stored, tensor: int, order: Order, columns: Sequence[int] = ()
    ) -> None:
        """Remember where the codes of a constant are."""
        if constant.params is not None:
            shape = tuple(constant.data.shape)
            place = StoredPoint(tensor, constant.params.axis, order, shape, tuple(columns))
            self.constants[constant.name] = place

    def integers(self, numbers: Sequence[int], name: str = "sizes") -> int:
        """Store int32 numbers, as operators take sizes and axes."""
        return self.builder.constant(name, np.array(numbers, np.int32))

    def floats(self, argument: fx.node.Argument) -> Value:
        """Return an argument in float; codes are dequantized once."""
        value = self.argument(argument)
        if isinstance(value, Stored):
            real = value.real()
            real = real.float() if real.dtype == torch.float64 else real
            return self.constant(Stored(value.name, real), identity(real.dim()))
        if value.params is None:
            return value
        known = self.cache.floats.get(value.index)
        if known is None:
            name = f"{self.builder.tensors[value.index].name}.dequantize"
            known = self.tensor(name, value.sizes, value.dynamic, value.order)
            self.emit("DEQUANTIZE", [value], known, version=2)
            self.cache.floats[value.index] = known
        # codes may have several views
        return replace(value, index=known.index, params=known.params, dtype=known.dtype)

    def read_operand(self, argument: fx.node.Argument, out: QuantParams | None) -> Value:
        """Return an operand in codes, or in float where the result is float."""
        return self.floats(argument) if out is None else self.as_tensor(argument)

    def in_graph_order(self, argument: fx.node.Argument, out: QuantParams | None = None) -> Value:
        """Return an operand as `read_operand` does, its columns in the order of the graph."""
        value = self.read_operand(argument, out)
        return self.in_order(value, value.order)

    def with_rank(self, value: Value, rank: int, title: str) -> Value:
        """Return a value with axes of size 1 in front."""
        missing = rank - len(value.sizes)
        sizes, dynamic = (1,) * missing + value.sizes, (False,) * missing + value.dynamic
        new = self.tensor(title, sizes, dynamic, identity(rank), value.params, value.dtype)
        self.reshape(value, new)
        return new

    def in_order(self, value: Value, order: Order) -> Value:
        """Return a value in another layout: itself, reshaped where only sizes of 1 move, or
        transposed."""
        if value.columns:
            value = self._without_columns(value)
        if value.order == order:
            return value
        key = value.index, value.order, order
        if key not in self.cache.orders:
            name = f"{self.builder.tensors[value.index].name}.transpose"
            new = self.tensor(name, value.sizes, value.dynamic, order, value.params, value.dtype)
            if not moves_data(value, order):
                self.reshape(value, new)
            else:
                axes = self.integers([value.order.index(i) for i in order])
                self.builder.operator("TRANSPOSE", [value.index, axes], [new.index], version=2)
            self.cache.orders[key] = new
        return self.cache.orders[key]

    def reshape(self, value: Value, new: Value) -> None:
        """Write a RESHAPE from one tensor to another; at most one size is dynamic."""
        tensor = self.builder.tensors[new.index]
        sizes = list(tensor.signature or tensor.shape)
        if sizes.count(-1) > 1:
            raise ExportError(
                f"'{tensor.name}' has several sizes that follow the batch", *FIXED_BATCH
            )
        index = self.integers(sizes)
        options = {"new_shape": np.array(sizes, np.int32)}
        self.builder.operator("RESHAPE", [value.index, index], [new.index], options)

    def _without_columns(self, value: Value) -> Value:
        """Return a flattened image with its columns in the order of the graph."""
        name = f"{self.builder.tensors[value.index].name}.columns"
        new = self.tensor(name, value.sizes, value.dynamic, value.order, value.params, value.dtype)
        columns = torch.tensor(value.columns).argsort()
        options = {"axis": len(value.sizes) - 1}
        inputs = [value.index, self.integers(columns.tolist())]
        self.builder.operator("GATHER", inputs, [new.index], options, 2)
        return new

    def emit(
        self,
        name: str,
        inputs: Sequence[Value | int],
        output: Value,
        version: int = 1,
        **options: Any,
    ) -> Value:
        """Write an operator and return its output."""
        indices = [i if isinstance(i, int) else i.index for i in inputs]
        self.builder.operator(name, indices, [output.index], options, version)
        return output

    def strided(
        self,
        value: Value,
        result: Value,
        ranges: Mapping[int, tuple[int, int, int]],
        **options: Any,
    ) -> Value:
        """Write STRIDED_SLICE: (begin, end, step) of some axes of the graph, all of the others."""
        chosen = [ranges.get(i, (0, 0, 1)) for i in value.order]
        mask = sum(1 << at for at, i in enumerate(value.order) if i not in ranges)
        ends = [self.integers(numbers) for numbers in zip(*chosen, strict=True)]
        masks = {"begin_mask": mask, "end_mask": mask, **options}
        return self.emit("STRIDED_SLICE", [value, *ends], result, 2, **masks)

    def pads(self, value: Value, around: Sequence[tuple[int, int]]) -> int:
        """Store the widths of a padding: before and behind each axis of the graph."""
        widths = [around[i] for i in value.order]
        return self.builder.constant("pads", np.array(widths, np.int32))

    def batch_size(self, value: Value) -> int:
        """Return the index of an int32 tensor [1] with the batch of a value at run time."""
        at = value.order.index(value.dynamic.index(True))
        rank = len(value.sizes)
        sizes = self.tensor(f"shape.{value.index}", [rank], [False], (0,), dtype="int32")
        self.emit("SHAPE", [value], sizes, out_type=2)
        batch = self.tensor(f"batch.{value.index}", [1], [False], (0,), dtype="int32")
        ends = [self.integers([n]) for n in (at, at + 1, 1)]
        self.emit("STRIDED_SLICE", [sizes, *ends], batch)
        return batch.index

    def run_time_sizes(self, value: Value, sizes: Sequence[int]) -> int:
        """Return the index of int32 sizes whose first is the batch of a value."""
        if not any(value.dynamic):
            return self.integers(sizes)
        joined = self.tensor(f"sizes.{value.index}", [len(sizes)], [False], (0,), dtype="int32")
        parts = [self.batch_size(value), self.integers(sizes[1:])]
        return self.emit("CONCATENATION", parts, joined, axis=0).index


def activation(bounds: Bounds, out: QuantParams | None = None) -> int:
    """Return the number of a fused activation; 0 for bounds that no operator fuses.

    Args:
        bounds: bounds of the activation.
        out: parameters of the output. A bound that is far outside of its codes is left out, since
            the runtime refuses one that does not fit 32 bits.
    """
    if out is not None:
        low, high = (
            None if b is not None and abs(b) / float(out.scale) >= _FAR else b for b in bounds
        )
        bounds = low, high
    return _ACTIVATION_NUMBERS.get(bounds, 0)


def moves_data(value: Value, order: Order) -> bool:
    """Return whether a layout differs in more than the places of sizes of 1."""
    large = [size != 1 for size in value.spread]
    return [i for i in value.order if large[i]] != [i for i in order if large[i]]
