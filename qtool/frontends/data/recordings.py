"""Recordings for a recurrent model, which takes its states of the step before as inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.backends.onnx.subgraph import TORCH_TYPES
from qtool.core.argument_names import argument
from qtool.core.data.arguments import Arguments
from qtool.core.data.batches import to_batch
from qtool.core.data.named_tensors import leaf_paths, named_leaves
from qtool.core.errors import DataError, describe
from qtool.core.numpy_files import even_positions
from qtool.core.remedies import Argument, DataEdit
from qtool.core.types import Array
from qtool.frontends.onnx.runtime_values import open_file
from qtool.frontends.own_models import FileNetwork

States = Mapping[str, str]
"""Output -> the input that takes it in the next step."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Recordings:
    """The steps of recordings, a batch each, with the states that the float model has before it.

    Attributes:
        model: the float model.
        data: recordings: batches with a row per step, in order; read again for each pass.
        states: output -> input; None: see `unroll_recordings`.
        samples: number of steps to yield, evenly spaced over those of all recordings; None: all.
    """

    model: nn.Module
    data: Iterable[Any]
    states: States | None = None
    samples: int | None = None

    @property
    def positions(self) -> Array | None:
        """Positions of the steps among those of all recordings, int64; None: all steps."""
        if self.samples is None:
            return None
        return even_positions(sum(to_batch(each).size for each in self.data), self.samples)

    def __iter__(self) -> Iterator[Tensors]:
        if (positions := self.positions) is None:
            yield from self._steps()
            return
        chosen = set(positions.tolist())
        yield from (step for at, step in enumerate(self._steps()) if at in chosen)

    def _steps(self) -> Iterator[Tensors]:
        run, pairs = _runner(self.model), self.states
        for index, recording in enumerate(self.data):
            rows, states = _split(self.model, recording, self.states)
            for step in range(_length(rows, index)):
                inputs = {**{n: _row(self.model, n, t, step) for n, t in rows.items()}, **states}
                yield inputs
                outputs = run(inputs)
                if pairs is None:
                    pairs = _pairs(outputs, {n: inputs[n] for n in states})
                _check(pairs, outputs, inputs)
                states = {into: outputs[name] for name, into in pairs.items()}


def unroll_recordings(
    model: nn.Module,
    recordings: Iterable[Any],
    states: States | None = None,
    samples: int | None = None,
) -> Iterable[Any]:
    """Return the steps of recordings with the states of a recurrent model, as batches for all
    functions that take data.

    The float model runs over each recording. Its states are zero before the first step, or what the
    recording has under the input's name.

    Args:
        model: the float model, which takes one step and its states.
        recordings: batches; each is a recording, with a row per step, in order.
        states: output -> the input that takes it in the next step. By default the inputs that the
            recordings lack, each with the only output of its shape and type.
        samples: number of steps to yield, evenly spaced over all; by default all.

    Raises:
        DataError: there are no such outputs or inputs, or their shapes differ; the pairs are not
            clear; or the model does not run on a step. When the steps are read. At once: `model` is
            no module.
    """
    if not isinstance(model, nn.Module):
        raise DataError(
            f"{argument('--state')} needs the float model as an nn.Module or an ONNX file; it is a "
            f"{type(model).__name__}"
        )
    again = list(recordings) if isinstance(recordings, Iterator) else recordings
    return Recordings(model, again, states, samples)


def _split(model: nn.Module, recording: Any, states: States | None) -> tuple[Tensors, Tensors]:
    """Return the inputs of a recording with a row per step, and the states before the first one."""
    names = list(model.inputs if isinstance(model, FileNetwork) else Arguments.of(model).required)
    fed = set() if states is None else set(states.values())
    named = named_leaves(to_batch(recording), [n for n in names if n not in fed])
    rows = {n: named[n] for n in names if n in named and n not in fed}
    lacking = [n for n in names if n not in rows]
    if states is not None and (other := [n for n in lacking if n not in fed]):
        raise DataError(f"the recording lacks the input '{other[0]}', which is no state")
    return rows, {n: named[n] if n in named else _zeros(model, n) for n in lacking}


def _zeros(model: nn.Module, name: str) -> torch.Tensor:
    """Return a state before the first step; an open size, that of the batch, is 1."""
    if not isinstance(model, FileNetwork):
        raise DataError(
            f"the size of the state '{name}' is not known",
            DataEdit(
                "give its first value in each recording, under that name, and its output "
                f"with {argument('--state')}"
            ),
        )
    kind = model.inputs[name]
    sizes = [d.dim_value if d.dim_value > 0 else 1 for d in kind.shape.dim]
    return torch.zeros(sizes, dtype=TORCH_TYPES[kind.elem_type])


def _length(rows: Tensors, index: int) -> int:
    lengths = {n: len(t) if t.dim() else 0 for n, t in rows.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(
            f"recording {index} has steps {lengths or 'of no input'}",
            DataEdit("give a row per step for each input that is no state"),
        )
    return next(iter(lengths.values()))


def _row(model: nn.Module, name: str, rows: torch.Tensor, step: int) -> torch.Tensor:
    """Return one step, as a batch of 1 unless the file's input has a dimension less."""
    if isinstance(model, FileNetwork) and len(model.inputs[name].shape.dim) < rows.dim():
        return rows[step]
    return rows[step : step + 1]


def _runner(model: nn.Module) -> Callable[[Tensors], Tensors]:
    """Return a function from the inputs of a step to the outputs by name."""
    if isinstance(model, FileNetwork):
        run = open_file(model.model)
        weights = model.external.arrays

        def run_step(inputs: Tensors) -> Tensors:
            results = run({**weights, **{n: t.numpy() for n, t in inputs.items()}})
            return {n: torch.from_numpy(a) for n, a in results.items()}

        return run_step

    def call(inputs: Tensors) -> Tensors:
        try:
            with torch.no_grad():
                results = model(**inputs)
        except (Exception, SystemExit) as error:
            raise DataError(f"the model does not run on a step: {describe(error)}") from error
        names = [".".join(path) or "output" for path in leaf_paths(results)]
        names = [f"output_{name}" if name.isdigit() else name for name in names]
        return dict(zip(names, pytree.tree_leaves(results), strict=True))

    return call


def _pairs(outputs: Tensors, states: Tensors) -> States:
    """Return output -> state, each with the only output of its shape and type."""
    pairs = dict[str, str]()
    for name, state in states.items():
        fitting = [n for n, t in outputs.items() if _like(t, state)]
        if len(fitting) != 1 or fitting[0] in pairs:
            raise DataError(
                f"the data lacks the input '{name}', and no single output is its next value "
                f"(of its shape: {', '.join(fitting) or 'none'})",
                Argument("--state", f"OUTPUT={name}", "name it with {}"),
                DataEdit("give the input"),
            )
        pairs[fitting[0]] = name
    return pairs


def _like(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _check(pairs: States, outputs: Tensors, inputs: Tensors) -> None:
    for name, into in pairs.items():
        for what, tensors, place in (("output", outputs, name), ("input", inputs, into)):
            if place not in tensors:
                known = ", ".join(tensors)
                raise DataError(f"the model has no {what} '{place}'; its {what}s are {known}")
        if not _like(outputs[name], inputs[into]):
            sizes = [list(t.shape) for t in (outputs[name], inputs[into])]
            raise DataError(
                f"output '{name}' is {sizes[0]}, and the input '{into}' that takes it {sizes[1]}"
            )
