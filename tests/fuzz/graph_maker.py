"""What rows of operators draw from: random numbers, the values that are there, new constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx

from tests.fuzz.graph import Constant

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Drawn:
    """The inputs and attributes of a node, and how many outputs it has."""

    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    outputs: int = 1


class Maker:
    """What a row draws from: random numbers, values that are there, constants that it adds."""

    def __init__(self, random: Random, values: Mapping[str, Array], opset: int, op: str) -> None:
        self.random, self.values, self.opset, self.op = random, values, opset, op
        self.constants: dict[str, Constant] = {}

    def constant(
        self, values: Any, dtype: str = "int64", shape: Sequence[int] | None = None
    ) -> str:
        flat = np.asarray(values).ravel().tolist()
        sizes = tuple(np.asarray(values).shape if shape is None else shape)
        return self._named(Constant(dtype, sizes, tuple(flat)))

    def weights(self, *shape: int, dtype: str = "float32", low: float | None = None) -> str:
        return self._named(Constant(dtype, shape, None, self.random.randrange(100), low))

    def _named(self, constant: Constant) -> str:
        name = f"c{self.random.randrange(10**6)}"
        self.constants[name] = constant
        return name

    def other(self, x: str) -> str:
        """A second operand: a value that broadcasts, a constant, a number, the same one."""
        of = self.values[x]
        fitting = [n for n, v in self.values.items() if v.dtype == of.dtype and _broadcast(v, of)]
        how = self.random.randrange(5)
        if how < 2 and fitting:
            return self.random.choice(fitting)
        shape = list(of.shape[1:]) if how < 4 else []
        if how == 3 and shape:
            shape = [s if self.random.randrange(2) else 1 for s in shape]
        return self.weights(*shape, dtype=str(of.dtype))

    def pick(self, **pools: Sequence[Any]) -> dict[str, Any]:
        """Attributes, some of them left out."""
        known = _attributes(self.op, self.opset)
        given = {k: self.random.choice(v) for k, v in pools.items() if self.random.randrange(3)}
        return {k: v for k, v in given.items() if known is None or k in known}

    def has(self, attribute: str) -> bool:
        known = _attributes(self.op, self.opset)
        return known is not None and attribute in known

    def axis(self, x: str, batch: bool = False) -> int:
        """An axis, counted from either end; seldom the batch."""
        rank = self.values[x].ndim
        first = 0 if batch or rank < 2 or self.random.randrange(12) == 0 else 1
        axis = self.random.randrange(first, max(rank, first + 1))
        return axis - rank if self.random.randrange(3) == 0 else axis

    def axes(self, x: str) -> list[int]:
        rank = self.values[x].ndim
        chosen = [a for a in range(1, rank) if self.random.randrange(2)] or [rank - 1]
        return [a - rank if self.random.randrange(3) == 0 else a for a in chosen]


def _broadcast(a: Array, b: Array) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def _attributes(op: str, opset: int) -> frozenset[str] | None:
    try:
        return frozenset(onnx.defs.get_schema(op, opset).attributes)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True)
class Row:
    """`draw` gives a node for a value, or raises where there is none; ranks, dtypes: of it."""

    draw: Callable[[Maker, str], Drawn]
    ranks: tuple[int, ...] = (1, 2, 3, 4, 5)
    dtypes: tuple[str, ...] = ("float32",)
    domain: str = ""
    often: int = 1
