"""The state of a conversion: a frozen value, which each step replaces by a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.algorithms.part_samples import PartSamples
from qtool.calibration.calibration import Calibration
from qtool.calibration.solve_parameters import Parameters, solve_parameters
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.graph import FloatGraph
from qtool.core.graph.float_tolerance import float_tolerance
from qtool.core.remedies import Argument
from qtool.core.types import Change
from qtool.frontends.captured_model import Captured, apply_passes, example_outputs
from qtool.passes import GraphPass, run_passes, same_function
from qtool.planning import targets
from qtool.planning.plan import QuantPlan, Rewrite
from qtool.planning.planner import make_plan

LESS_ACCURATE = "skipped as less accurate on held-out samples"
FAILED = "skipped after a failure ({})"

Solutions = WeakKeyDictionary[fx.GraphModule, tuple[Parameters, tuple[object, ...]]]
"""Module -> its parameters, and the parts of plan and calibration that they were solved from."""


@dataclass(frozen=True, eq=False)
class ConversionState:
    """A model on its way to integers.

    Attributes:
        captured: the captured model in canonical form, the reference of comparisons.
        graph: the float graph in the forms of the target, as the steps have changed it.
        plan: plan of that graph.
        calibration: statistics of its tensors; None where a file is read back.
        parameters: parameters of the plan's points, once they are solved.
        changes: what the steps did, in order.
        solutions: parameters that were solved before, by module; shared by all states.
        samples: samples of a part of a network; None: the calibration has those of the whole one.
    """

    captured: Captured
    graph: FloatGraph
    plan: QuantPlan
    calibration: Calibration | None = None
    parameters: Parameters | None = None
    changes: tuple[Change, ...] = ()
    solutions: Solutions = field(default_factory=WeakKeyDictionary)
    samples: PartSamples | None = None

    @classmethod
    def start(
        cls, captured: Captured, plan: QuantPlan, calibration: Calibration | None = None
    ) -> ConversionState:
        """Return the state before the first step, which reads no sample for the estimate."""
        graph, _ = captured.for_target(plan.target)
        return cls(captured, graph, plan, None if calibration is None else calibration.pooled())

    def batches(
        self,
        size: int = 32,
        limit: int | None = None,
        holdout: bool | None = False,
        channels_last: bool = False,
    ) -> Sequence[Batch]:
        """Return the calibration samples as arguments of the graph, in batches that it accepts.

        Those of a part of a network have its inputs in the float network, too (`PartBatch`).

        Args:
            size: samples of a batch; limit, holdout: see `CalibrationSamples.batches`.
            channels_last: memory layout; convolutions of few channels are twice as fast, with other
                last bits.
        """
        if self.samples is not None:
            return self.samples.batches(self.graph, size, limit, holdout)
        if self.calibration is None:
            return []
        kept = self.calibration.kept_samples
        size, fewest = self._batch_sizes(kept, size)
        return self._calls(kept.batches(size, limit, holdout), fewest, channels_last)

    def estimates(self, size: int, limit: int) -> list[Batch]:
        """Return the samples for the estimate, see `CalibrationSamples.estimates`."""
        if self.calibration is None:
            return []
        kept = self.calibration.kept_samples
        size, fewest = self._batch_sizes(kept, size)
        return self._calls(kept.estimates(size, limit), fewest)

    def estimate_origins(self) -> list[str]:
        """Return where each sample for the estimate is in the data."""
        return [] if self.calibration is None else self.calibration.kept_samples.estimate_origins()

    def _batch_sizes(self, kept: CalibrationSamples, size: int) -> tuple[int, int]:
        """Return how many stored samples make a batch (one where a sample is a whole batch), and
        the fewest samples of a batch that the graph takes. size: wanted samples of a batch."""
        fewest, highest = self.graph.batch_size_range()
        whole = not self.graph.batches_are_samples
        if (whole or size < fewest) and (sample := next(iter(kept), None)) is not None:
            fewest = self.graph.fewest_samples(self.graph.call_of(sample.tensors))
        size = max(size, fewest)
        return 1 if whole else min(size, highest or size), fewest

    def _calls(
        self, batches: Sequence[tuple[torch.Tensor, ...]], fewest: int, channels_last: bool = False
    ) -> list[Batch]:
        """Return batches as arguments of the graph, without those that are too small for it."""
        fitting = (t for t in batches if Batch(tuple(t)).size >= fewest)
        if channels_last:
            fitting = (tuple(map(_to_channels_last, t)) for t in fitting)
        return [self.graph.call_of(t) for t in fitting]

    def apply_edit(
        self,
        change: Change,
        edit: Callable[[fx.GraphModule], int],
        samples: Sequence[Batch] | None = None,
    ) -> ConversionState:
        """Return the state after an edit of the graph that keeps its function, with a new plan.

        Args:
            change: the record of the edit.
            edit: changes a copy of the module in place; returns the number of places.
            samples: inputs to check the function on, by default the example; empty where a change
                is replayed that was checked before.

        Raises:
            PassError: the edited module computes something else.
        """
        graph = replace(self.graph, module=G.clone(self.graph.module))
        steps = [GraphPass(change.step, edit)]
        if samples is None:
            apply_passes(graph, steps, example_outputs(self.graph))
        else:
            run_passes(graph.module, steps)
            _check_same_function(self.graph.module, graph.module, samples)
        old = self.plan
        seen = self.calibration.specs if self.calibration is not None else None
        plan = make_plan(graph.graph, targets.target(old.target), old.observer, old.recipe, seen)
        return replace(self, graph=graph, plan=replace(plan, rewrites=old.rewrites)).with_change(
            change
        )

    def solved(self) -> ConversionState:
        """Return the state with scale and zero point of every point of the plan; itself if it has
        them."""
        if self.parameters is not None:
            return self
        assert self.calibration is not None
        notes, solution = self.calibration.notes, self.solutions.get(self.graph.module)
        evidence = (self.plan.points, self.plan.nodes, self.calibration.statistics)
        if solution is not None and all(map(is_, evidence, solution[1])):
            return replace(self, parameters=replace(solution[0], notes=notes + solution[0].notes))
        silent = replace(self.calibration, notes=())
        parameters = solve_parameters(self.graph.module, self.plan, silent)
        self.solutions[self.graph.module] = parameters, evidence
        return replace(self, parameters=replace(parameters, notes=notes + parameters.notes))

    def without_samples(self, step: str) -> ConversionState:
        """Return the state with a note that a step was skipped, since it has too few samples."""
        kept = CalibrationSamples(0) if self.calibration is None else self.calibration.kept_samples
        count = str(len(kept))
        if len(kept) < min(kept.total, kept.limit):
            count += f" of {kept.total}; equal samples count once"
        if not self.graph.batches_are_samples:
            count += "; a batch of a fixed size counts as one"
        why = f"the calibration kept too few samples for it ({count})"
        if not kept.limit:
            again = Argument("--recover", step, "calibrate again with {}")
            why = f"the calibration kept no samples; {again}"
        return self.with_notes(f"{step}: skipped, since {why}")

    def with_notes(self, *notes: str) -> ConversionState:
        """Return the state with more notes for the user."""
        if self.parameters is None:
            assert self.calibration is not None
            calibration = replace(self.calibration, notes=(*self.calibration.notes, *notes))
            return replace(self, calibration=calibration)
        parameters = replace(self.parameters, notes=(*self.parameters.notes, *notes))
        return replace(self, parameters=parameters)

    def with_change(self, change: Change) -> ConversionState:
        """Return the state with a change recorded, in the plan and for the file."""
        rewrite = Rewrite(change.step, change.count, change.reason)
        plan = replace(self.plan, rewrites=(*self.plan.rewrites, rewrite))
        return replace(self, plan=plan, changes=(*self.changes, change))


def _to_channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def _check_same_function(one: nn.Module, other: nn.Module, samples: Iterable[Batch]) -> None:
    with torch.inference_mode():
        for batch in samples:
            before, after = (m(*batch.args, **batch.kwargs) for m in (one, other))
            noise = partial(float_tolerance, other, batch.args, batch.kwargs)
            same_function(pytree.tree_leaves(before), pytree.tree_leaves(after), noise=noise)
