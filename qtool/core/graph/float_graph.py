"""The float graph: captured from a model, rewritten by passes, read by everything else.

An ATen `fx.GraphModule` with parameters as attributes, callable as the user's model. Every node has
`meta["val"]` (a fake tensor: shape, dtype, device) and a stable, readable name made from the user's
module path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.data import Batch
from qtool.core.data.named_tensors import named_leaves
from qtool.core.errors import DataError
from qtool.core.graph.devices import CPU
from qtool.core.random_inputs import Input
from qtool.core.remedies import DataEdit
from qtool.core.shape_remedies import shape_remedies, type_remedies
from qtool.core.source_metadata import SourceMetadata


@dataclass
class FloatGraph:
    """A captured model.

    Attributes:
        module: the graph, with the arguments and the output structure of the user's model.
        inputs: inputs in order, with their names in the ONNX file.
        outputs: names in the ONNX file, in order.
        example: positional and keyword arguments of the capture.
        constraints: symbol -> range of a dynamic dimension, from torch.export.
        dims: symbol -> name that the user gave the dimension ("batch").
        size_conditions: sentences on further conditions that sizes must meet, because the model
            branches on them.
        metadata: metadata of the file that it was captured from.
        labels: number of classes that the user's labels show; 0 without whole numbers as labels.
        columns: names of the columns of a table that are the inputs, in order; () of other data.
        device: the device of the user's model. The module is on the CPU; runs over samples take a
            copy on this device (`on_device`).
    """

    module: fx.GraphModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    example: tuple[tuple[Any, ...], dict[str, Any]]
    constraints: dict[Any, Any]
    dims: dict[str, str]
    size_conditions: tuple[str, ...] = ()
    metadata: SourceMetadata = field(default_factory=SourceMetadata)
    labels: int = 0
    columns: tuple[str, ...] = ()
    device: torch.device = CPU

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    def tensors_of(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a bound batch in the order of the inputs."""
        kwargs = {k: batch.kwargs[k] for k in self.example[1]}
        leaves = pytree.tree_leaves((batch.args, kwargs))
        return tuple(t for t in leaves if isinstance(t, torch.Tensor))

    def leaves_of(self, batch: Batch) -> list[Any]:
        """Return the arguments of a bound batch, tensors or not, one per placeholder."""
        leaves = pytree.tree_leaves((batch.args, {k: batch.kwargs[k] for k in self.example[1]}))
        n_inputs = sum(node.op == "placeholder" for node in self.graph.nodes)
        return leaves if len(leaves) == n_inputs else [x for x in leaves if x is not None]

    def call_of(self, tensors: Sequence[torch.Tensor]) -> Batch:
        """Return the batch with these tensors; other arguments are those of the example."""
        leaves, spec = pytree.tree_flatten(self.example)
        remaining = iter(tensors)
        filled = [next(remaining) if isinstance(x, torch.Tensor) else x for x in leaves]
        return Batch(*pytree.tree_unflatten(filled, spec))

    def head(self, batch: Batch, count: int) -> Batch:
        """Return at most `count` samples of a bound batch; all of it without `any_batch_size`."""
        if not self.any_batch_size:
            return batch
        return self.cut(batch, max(count, self.batch_size_range()[0]))

    def cut(self, batch: Batch, count: int) -> Batch:
        """Return `count` samples of a bound batch, whether the model runs with so few or not."""
        tensors = zip(self.inputs, self.tensors_of(batch), strict=True)
        return self.call_of([t[:count] if _has_dynamic_batch(i) else t for i, t in tensors])

    def size_of(self, batch: Batch) -> int:
        """Return the number of samples of a bound batch."""
        pairs = zip(self.inputs, self.tensors_of(batch), strict=True)
        return next((len(t) for i, t in pairs if _has_dynamic_batch(i)), batch.size)

    def samples_of(self, batch: Batch, chosen: torch.Tensor | slice) -> Batch:
        """Return the chosen samples of a bound batch that may be split; inputs without a dynamic
        batch size stay as they are."""
        tensors = zip(self.inputs, self.tensors_of(batch), strict=True)
        own = self.call_of([t[chosen] if _has_dynamic_batch(i) else t for i, t in tensors])
        return replace(own, whole=batch.whole and self.samples_of(batch.whole, chosen))

    def join(self, batches: Sequence[Batch]) -> Batch:
        """Return the samples of bound batches as one; all inputs have a row per sample."""
        return self.call_of(
            [torch.cat(t) for t in zip(*map(self.tensors_of, batches), strict=True)]
        )

    def smaller(self, batch: Batch, count: int) -> Batch:
        """Return `head`, or the whole batch if the model does not run with less: one input may
        index the samples of another, as the edges of a graph its nodes."""
        few = self.head(batch, count)
        return few if few.size < batch.size and self._runs_alone(few) else batch

    def _runs_alone(self, few: Batch) -> bool:
        """Return whether some samples of a batch run without the others."""
        every = not self.all_inputs_have_samples
        to_check = [n for n in self.graph.nodes if every or _is_indexing(n)]
        return not to_check or self._runs(to_check, few)

    def _runs(self, nodes: Iterable[fx.Node], batch: Batch) -> bool:
        """Return whether these nodes, and those they need, run on a batch."""
        try:
            with torch.no_grad():
                _Subgraph(self.module, nodes).run(
                    *self.leaves_of(batch), enable_io_processing=False
                )
        except Exception:  # noqa: BLE001  # torch's, or the runtime's, by operator
            return False
        return True

    @property
    def any_batch_size(self) -> bool:
        """True if the batch size is dynamic and common to all inputs that have one."""
        return len({i.shape[0] for i in self.inputs if _has_dynamic_batch(i)}) == 1

    @property
    def can_split_batches(self) -> bool:
        """True if a batch may be split: `any_batch_size`, and no input indexes the samples of
        another (see `smaller`)."""
        if not self.any_batch_size:
            return False
        example, fewest = Batch(*self.example), self.batch_size_range()[0]
        if example.size < 2:
            return True
        # torch may run one sample even where the graph is valid from two on
        return self._runs_alone(self.cut(example, fewest if example.size > fewest else 1))

    @property
    def batches_are_samples(self) -> bool:
        """True if a batch may be cut into samples: `can_split_batches`, and each input has one row
        per sample."""
        return self.can_split_batches and self.all_inputs_have_samples

    @property
    def all_inputs_have_samples(self) -> bool:
        """True if the batch size of each input is dynamic."""
        return all(map(_has_dynamic_batch, self.inputs))

    def restrictions(self) -> tuple[str, ...]:
        """Return sentences on the batch sizes and other sizes that the file does not support."""
        first = next((i for i in self.inputs if i.shape), None)
        if first is not None and not any(map(_has_dynamic_batch, self.inputs)):
            only = f"the file takes only {first.shape[0]} as the first size of '{first.name}'"
            return (f"{only}: the captured graph computes with that number", *self.size_conditions)
        fewest, most = self.batch_size_range()
        batch_size: tuple[str, ...] = ()
        if most is not None:
            batch_size = (f"the file is valid for {fewest} to {most} samples: {_BRANCHES}",)
        elif fewest > MIN_SAMPLES:
            batch_size = (f"the file is valid from {fewest} samples on: {_BRANCHES}",)
        return (*batch_size, *self.size_conditions)

    def largest_sizes(self) -> tuple[str, ...]:
        """Return a sentence for each open size behind the samples that has a limit, as the number
        of tokens of a model with a table of positions."""
        names = {size for i in self.inputs for size in i.shape[1:] if isinstance(size, str)}
        most = {
            self.dims.get(str(symbol), ""): bounds.upper
            for symbol, bounds in self.constraints.items()
            if bounds.upper.is_Integer
        }
        return tuple(
            f"'{name}' is at most {most[name]} in the file: the model computes no longer one"
            for name in sorted(names & most.keys())
        )

    def batch_size_range(self) -> tuple[int, int | None]:
        """Return the smallest and the largest batch size of the graph; None: no limit."""
        names = {i.shape[0] for i in self.inputs if _has_dynamic_batch(i)}
        for symbol, bounds in self.constraints.items():
            if self.dims.get(str(symbol), str(symbol)) in names:
                most = bounds.upper
                return int(bounds.lower), int(most) if most.is_Integer else None
        return 0, None

    def fewest_samples(self, batch: Batch) -> int:
        """Return the smallest batch size that runs: one where the graph is valid from two on, but
        one sample of this batch runs, too."""
        fewest = self.batch_size_range()[0]
        single = fewest > 1 and self._runs(self.graph.nodes, self.cut(batch, 1))
        return 1 if single else max(fewest, 1)

    def bind(self, batch: Batch, index: int = 0) -> Batch:
        """Return the batch as arguments of this graph, checked against its inputs.

        Args:
            batch: arguments by position or name, nested as for the model or flat with the names of
                the inputs.
            index: number of the batch, for messages.

        Raises:
            DataError: an input is missing or unknown, or has a wrong dtype, rank or fixed size.
        """
        names = [i.name for i in self.inputs]
        leaves = named_leaves(batch, names)
        tensors = [t for t in pytree.tree_leaves((batch.args, batch.kwargs)) if t is not None]
        named = len(tensors) == len(names) and leaves.keys() == set(names)
        if self._same_arguments(batch):
            self._check_none(batch, index)
        elif not named:
            raise DataError(
                f"batch {index} gives {', '.join(leaves) or 'nothing'}; "
                f"the model takes {', '.join(names)}"
            )
        if len(tensors) != len(names):
            raise DataError(
                f"batch {index} has {len(tensors)} tensors, the model takes {len(names)}: "
                f"{'; '.join(map(str, self.inputs))}"
            )
        tensors = [leaves[n] for n in names] if named else tensors
        for expected, actual in zip(self.inputs, tensors, strict=True):
            _check_input(expected, actual, index)
        whole = None
        if batch.whole is not None:
            with suppress(DataError):  # the graph may take a fixed number of tokens
                whole = self.bind(batch.whole, index)
        return replace(self._converted(self.call_of(tensors)), whole=whole)

    def _same_arguments(self, batch: Batch) -> bool:
        args, kwargs = self.example
        return len(batch.args) == len(args) and batch.kwargs.keys() == kwargs.keys()

    def _check_none(self, batch: Batch, index: int) -> None:
        args, kwargs = self.example
        ours, theirs = (
            [x is None for x in pytree.tree_leaves((a, {k: kw[k] for k in kwargs}))]
            for a, kw in ((args, kwargs), (batch.args, batch.kwargs))
        )
        if len(ours) == len(theirs) and ours != theirs:
            raise DataError(
                f"batch {index} has None for other arguments than the batch that the model was "
                "captured with, and a graph has one path",
                DataEdit("give the same ones"),
            )

    def _converted(self, batch: Batch) -> Batch:
        """Return the batch in float32, if all floating point inputs are."""
        types = {i.dtype for i in self.inputs if "float" in i.dtype}
        tensors = (t for _, t in batch.tensors() if t.is_floating_point())
        others = any(t.dtype is not torch.float32 for t in tensors)
        return batch.to_float32() if others and types == {"float32"} else batch


_BRANCHES = "the model branches on the number"
MIN_SAMPLES = 2  # torch.export specializes smaller batch sizes


class _Subgraph(fx.Interpreter):
    """Runs some nodes of a graph and those that they need."""

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


_INDEXING = ("index", "gather", "scatter", "select", "grid_sampler", "take", "onnx_part")


def _is_indexing(node: fx.Node) -> bool:
    return node.op == "call_function" and any(word in str(node.target) for word in _INDEXING)


def _has_dynamic_batch(tensor: Input) -> bool:
    return bool(tensor.shape) and isinstance(tensor.shape[0], str)


def _check_input(expected: Input, actual: object, index: int) -> None:
    where = f"batch {index}, input '{expected.name}'"
    if not isinstance(actual, torch.Tensor):
        raise DataError(f"{where} is a {type(actual).__name__}, not a tensor")
    dtype = str(actual.dtype).removeprefix("torch.")
    converted = expected.dtype == "float32" and actual.is_floating_point()  # see `_converted`
    if dtype != expected.dtype and not converted:
        raise DataError(
            f"{where} is {dtype}, the model takes {expected.dtype}",
            *type_remedies(expected.dtype, dtype, actual),
        )
    fits = actual.dim() == len(expected.shape) and all(
        isinstance(e, str) or e == a for e, a in zip(expected.shape, actual.shape, strict=True)
    )
    if not fits:
        raise DataError(
            f"{where} has shape {list(actual.shape)}, the model takes {expected}",
            *shape_remedies(expected.shape, actual.shape, expected.name),
        )
