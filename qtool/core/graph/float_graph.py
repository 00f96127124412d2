"""The float graph: what capture gives, what passes rewrite, what everything else reads.

An ATen `fx.GraphModule` with parameters as attributes, callable exactly as the user's model.
Every node carries `meta["val"]` (a fake tensor: shape, dtype, device) and a stable, readable name
made from the user's module path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.data import Batch
from qtool.core.errors import DataError


@dataclass(frozen=True)
class Input:
    """One tensor input: dynamic dimensions are names, fixed ones sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass
class FloatGraph:
    """A captured model.

    module: the graph, callable as the user's model was (same arguments, same output structure).
    inputs, outputs: names in order, as they will stand in the ONNX file.
    example: positional and keyword arguments the graph was captured with.
    constraints: ranges of the symbolic dimensions, as torch.export found them.
    dims: symbol -> the name a person gave that dimension ("batch").
    decided: in sentences, what has to hold of the sizes besides, since the model decides by them.
    """

    module: fx.GraphModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    example: tuple[tuple[Any, ...], dict[str, Any]]
    constraints: dict[Any, Any]
    dims: dict[str, str]
    size_conditions: tuple[str, ...] = ()

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    def tensors_of(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """The tensors of a bound batch, in the order of the inputs."""
        kwargs = {k: batch.kwargs[k] for k in self.example[1]}
        leaves = pytree.tree_leaves((batch.args, kwargs))
        return tuple(t for t in leaves if isinstance(t, torch.Tensor))

    def leaves_of(self, batch: Batch) -> list[Any]:
        """The arguments of a bound batch, tensors or not, one to a placeholder."""
        leaves = pytree.tree_leaves((batch.args, {k: batch.kwargs[k] for k in self.example[1]}))
        places = sum(node.op == "placeholder" for node in self.graph.nodes)
        return leaves if len(leaves) == places else [x for x in leaves if x is not None]

    def call_of(self, tensors: Sequence[torch.Tensor]) -> Batch:
        """The inverse of `tensors_of`; what is no tensor is as in the example."""
        leaves, spec = pytree.tree_flatten(self.example)
        given = iter(tensors)
        filled = [next(given) if isinstance(x, torch.Tensor) else x for x in leaves]
        return Batch(*pytree.tree_unflatten(filled, spec))

    def head(self, batch: Batch, count: int) -> Batch:
        """At most so many samples of a bound batch; all of it where `any_number` does not hold."""
        if not self.any_batch_size:
            return batch
        count = max(count, self.batch_size_range()[0])
        tensors = zip(self.inputs, self.tensors_of(batch), strict=True)
        return self.call_of([t[:count] if _is_open(i) else t for i, t in tensors])

    def smaller(self, batch: Batch, count: int) -> Batch:
        """As `head`, of what it runs with: all of a batch in which an input, or what is stored,
        counts the samples of another, as the edges of a graph do its nodes."""
        few = self.head(batch, count)
        if few.size >= batch.size:
            return batch
        open_ = all(map(_is_open, self.inputs))
        doubtful = [n for n in self.graph.nodes if not open_ or _takes_by_number(n)]
        return few if not doubtful or self._computes(doubtful, few) else batch

    def _computes(self, nodes: Iterable[fx.Node], batch: Batch) -> bool:
        """Whether these nodes can be computed; nothing is that none of them needs."""
        try:
            with torch.no_grad():
                _Part(self.module, nodes).run(*self.leaves_of(batch), enable_io_processing=False)
        except Exception:  # noqa: BLE001  # torch's, or the runtime's, by operator
            return False
        return True

    @property
    def any_batch_size(self) -> bool:
        """Whether it takes any number of samples: not where that is fixed, or where inputs have
        numbers of their own."""
        return len({i.shape[0] for i in self.inputs if _is_open(i)}) == 1

    @property
    def can_split_batches(self) -> bool:
        """Whether a batch may be cut into parts of any number of samples: as `any_number`, and not
        where something counts them (see `fewer`)."""
        example = Batch(*self.example)
        return self.any_batch_size and (
            example.size < MIN_SAMPLES or self.smaller(example, 1) is not example
        )

    def restrictions(self) -> tuple[str, ...]:
        """In sentences, which numbers of samples it was not captured for."""
        first = next((i for i in self.inputs if i.shape), None)
        if first is not None and not any(map(_is_open, self.inputs)):
            only = f"the file takes {first.shape[0]} as the first size of '{first.name}' alone"
            return (f"{only}: the model computes with it in a way that no graph holds",)
        fewest, most = self.batch_size_range()
        told: tuple[str, ...] = ()
        if most is not None:
            told = (f"the file is right for {fewest} to {most} samples: the model decides by that",)
        elif fewest > MIN_SAMPLES:
            told = (f"the file is right from {fewest} samples on: the model decides by that",)
        return (*told, *self.size_conditions)

    def batch_size_range(self) -> tuple[int, int | None]:
        """The fewest and the most samples that the graph is right for; None: any number."""
        names = {i.shape[0] for i in self.inputs if _is_open(i)}
        for symbol, bounds in self.constraints.items():
            if self.dims.get(str(symbol), str(symbol)) in names:
                most = bounds.upper
                return int(bounds.lower), int(most) if most.is_Integer else None
        return 0, None

    def bind(self, batch: Batch, index: int = 0) -> Batch:
        """The batch as arguments of this graph, checked against its inputs.

        Raises:
            DataError: missing or unknown inputs, a wrong dtype, rank or fixed size; says which.
        """
        args, kwargs = self.example
        if len(batch.args) != len(args) or set(batch.kwargs) != set(kwargs):
            batch = self._rearranged(batch, index)
        found = [t for t in pytree.tree_leaves((batch.args, batch.kwargs)) if t is not None]
        if len(found) != len(self.inputs):
            raise DataError(
                f"batch {index} has {len(found)} tensors, the model takes {len(self.inputs)}: "
                f"{'; '.join(map(str, self.inputs))}"
            )
        ours, theirs = (
            [x is None for x in pytree.tree_leaves((a, {k: kw[k] for k in kwargs}))]
            for a, kw in ((args, kwargs), (batch.args, batch.kwargs))
        )
        if len(ours) == len(theirs) and ours != theirs:
            raise DataError(
                f"batch {index} has None for other arguments than the batch that the model was "
                "captured with; a graph has one path: give the same ones"
            )
        for expected, actual in zip(self.inputs, found, strict=True):
            _check_input(expected, actual, index)
        return batch

    def _rearranged(self, batch: Batch, index: int) -> Batch:
        """Arguments given by name where the example had them by position, or the reverse."""
        names = [i.name for i in self.inputs]
        given = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        args, kwargs = self.example
        if set(given) != set(names) or len(args) + len(kwargs) != len(names):
            raise DataError(
                f"batch {index} gives {', '.join(given) or 'nothing'}; "
                f"the model takes {', '.join(names)}"
            )
        return Batch(
            tuple(given[n] for n in names if n not in kwargs), {n: given[n] for n in kwargs}
        )


MIN_SAMPLES = 2  # samples, from which on torch.export captures anything


class _Part(fx.Interpreter):
    """Runs these nodes of a graph, and what they read."""

    def __init__(self, module: fx.GraphModule, nodes: Iterable[fx.Node]) -> None:
        super().__init__(module)
        self.needed: set[fx.Node] = set(module.graph.find_nodes(op="placeholder"))
        waiting = [n for n in nodes if n.op != "output"]
        while waiting:
            node = waiting.pop()
            if node not in self.needed:
                self.needed.add(node)
                waiting += node.all_input_nodes

    def run_node(self, n: fx.Node) -> Any:
        return super().run_node(n) if n in self.needed else None


_BY_NUMBER = ("index", "gather", "scatter", "select", "grid_sampler", "take", "onnx_part")


def _takes_by_number(node: fx.Node) -> bool:
    return node.op == "call_function" and any(word in str(node.target) for word in _BY_NUMBER)


def _is_open(given: Input) -> bool:
    return bool(given.shape) and isinstance(given.shape[0], str)


def _check_input(expected: Input, actual: object, index: int) -> None:
    where = f"batch {index}, input '{expected.name}'"
    if not isinstance(actual, torch.Tensor):
        raise DataError(f"{where} is a {type(actual).__name__}, not a tensor")
    dtype = str(actual.dtype).removeprefix("torch.")
    if dtype != expected.dtype:
        raise DataError(f"{where} is {dtype}, the model takes {expected.dtype}; convert it first")
    fits = actual.dim() == len(expected.shape) and all(
        isinstance(e, str) or e == a for e, a in zip(expected.shape, actual.shape, strict=True)
    )
    if not fits:
        raise DataError(f"{where} has shape {list(actual.shape)}, the model takes {expected}")
