"""One stair for all that changes a model: a frozen conversion, and steps that give a new one.

A step says what it wants to have seen (probes), decides by what was seen, and returns another
conversion with a record of what it did (`Change`). The records travel in the metadata of the file;
whoever reads it back does them again on the captured model, each step by its own `replay`, and
stands where the file was written from. Nothing else knows a step by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.calibration.calibration import Calibration
from qtool.calibration.solve_parameters import Parameters, solve_parameters
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PlanError, VerificationError
from qtool.core.graph import FloatGraph
from qtool.core.graph.float_tolerance import float_tolerance
from qtool.core.progress import track_task
from qtool.core.types import Change
from qtool.frontends.captured_model import Captured, apply_passes, example_outputs
from qtool.passes import GraphPass, run_passes, same_function
from qtool.planning import targets
from qtool.planning.plan import Probe, QuantPlan, Rewrite
from qtool.planning.planner import make_plan


@dataclass(frozen=True, eq=False)
class ConversionState:
    """A model on its way to integers.

    captured: what was captured, in canonical form; what the result is compared with.
    graph: the float graph in the forms of the target, as the steps have left it.
    plan: of that graph. calibration: what was seen of its tensors; None where a file is read back.
    parameters: of the plan's points, once they are solved.
    changes: what the steps did, in order.
    """

    captured: Captured
    graph: FloatGraph
    plan: QuantPlan
    calibration: Calibration | None = None
    parameters: Parameters | None = None
    changes: tuple[Change, ...] = ()

    @classmethod
    def start(
        cls, captured: Captured, plan: QuantPlan, calibration: Calibration | None = None
    ) -> ConversionState:
        """Before the first step."""
        graph, _ = captured.for_target(plan.target)
        return cls(captured, graph, plan, calibration)

    def batches(
        self, size: int = 32, limit: int | None = None, holdout: bool | None = False
    ) -> list[Batch]:
        """The samples kept with the calibration, as arguments of the graph (see `Kept.batches`); by
        as many as the graph takes."""
        if self.calibration is None:
            return []
        fewest, highest = self.graph.batch_size_range()
        size = max(size, fewest)
        found = self.calibration.kept_samples.batches(min(size, highest or size), limit, holdout)
        whole = None if self.graph.can_split_batches else Batch(*self.graph.example).size
        sizes = ((t, Batch(tuple(t)).size) for t in found)  # the last may hold too few
        taken = (t for t, size in sizes if (size >= fewest if whole is None else size == whole))
        return [self.graph.call_of(t) for t in taken]

    def quick_batches(
        self, size: int = 32, limit: int | None = None, holdout: bool | None = False
    ) -> list[Batch]:
        """`batches` with all values of a pixel side by side: few channels are convolved twice as
        fast, to other last bits."""
        found = self.batches(size, limit, holdout)
        tensors = ([_to_channels_last(t) for t in self.graph.tensors_of(b)] for b in found)
        return [self.graph.call_of(each) for each in tensors]

    def apply_edit(
        self,
        change: Change,
        edit: Callable[[fx.GraphModule], int],
        samples: Sequence[Batch] | None = None,
    ) -> ConversionState:
        """The conversion with its graph changed, its function kept, planned anew.

        Args:
            change: the record of it.
            edit: changes a copy of the module in place; returns how many places.
            samples: what the function is shown to be kept on, by default the example; none where a
                change is done again that was shown before.

        Raises:
            PassError: the module computes something else afterwards.
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

    def with_notes(self, *notes: str) -> ConversionState:
        """With sentences for whoever converts, among what else had to be adjusted."""
        if self.parameters is None:
            assert self.calibration is not None
            seen = replace(self.calibration, notes=(*self.calibration.notes, *notes))
            return replace(self, calibration=seen)
        parameters = replace(self.parameters, notes=(*self.parameters.notes, *notes))
        return replace(self, parameters=parameters)

    def with_change(self, change: Change) -> ConversionState:
        """With a change recorded, for the plan's reader and for the file."""
        done = Rewrite(change.step, change.count, change.reason)
        plan = replace(self.plan, rewrites=(*self.plan.rewrites, done))
        return replace(self, plan=plan, changes=(*self.changes, change))


def _to_channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def _check_same_function(one: nn.Module, other: nn.Module, samples: Iterable[Batch]) -> None:
    with torch.inference_mode():
        for batch in samples:
            before, after = (m(*batch.args, **batch.kwargs) for m in (one, other))
            noise = partial(float_tolerance, other, batch.args, batch.kwargs)
            same_function(pytree.tree_leaves(before), pytree.tree_leaves(after), noise=noise)


def _no_probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    return ()


def _record_only(state: ConversionState, change: Change) -> ConversionState:
    return state.with_change(change)


@dataclass(frozen=True)
class Step:
    """One row of the stair.

    name: in recipes, notes and metadata.
    run: decides by what was seen, and returns the conversion after it; the same one where the step
        has nothing to do.
    probes: what it wants to have seen of a float graph, given the plan of that graph.
    accuracy: from which accuracy on it is taken where nobody names steps; see `Recipe`. "": never.
    samples: how many samples it wants to learn from by running the network; they are kept with the
        calibration, and half as many to judge by.
    replay: does a recorded change again, without calibration. By default nothing is done: values of
        weights alone are taken from the codes in the file.
    low_bits: as `samples`, where a weight has fewer than 8 bits, if that is more.
    """

    name: str
    run: Callable[[ConversionState], ConversionState]
    probes: Callable[[fx.Graph, QuantPlan], Sequence[Probe]] = _no_probes
    accuracy: str = "fast"
    samples: int = 0
    replay: Callable[[ConversionState, Change], ConversionState] = _record_only
    low_bits: int = 0


def _solve(state: ConversionState) -> ConversionState:
    assert state.calibration is not None
    found = solve_parameters(state.graph.module, state.plan, state.calibration)
    return replace(state, parameters=found)


SOLVE = Step("solve", _solve)
"""Scale and zero point of every point of the plan: the one step that cannot be left out."""


def collect_probes(steps: Iterable[Step], graph: fx.Graph, plan: QuantPlan) -> tuple[Probe, ...]:
    """What steps want to have seen, each thing once.

    Raises:
        PlanError: two steps want different things under one name.
    """
    found: dict[str, Probe] = {}
    for step in steps:
        for probe in step.probes(graph, plan):
            if found.setdefault(probe.name, probe) != probe:
                raise PlanError(f"step {step.name}: another step has a probe '{probe.name}'")
    return tuple(found.values())


def run_steps(steps: Iterable[Step], state: ConversionState) -> ConversionState:
    """A conversion after all of the steps, in order."""
    for step in steps:
        with track_task(step.name):
            state = step.run(state)
    return state


def replay_changes(
    steps: Iterable[Step], state: ConversionState, changes: Iterable[Change]
) -> ConversionState:
    """The conversion that recorded changes lead to.

    Raises:
        VerificationError: a step of that name is not known here, or it does not fit this model.
    """
    known = {step.name: step for step in steps}
    for change in changes:
        if change.step not in known:
            raise VerificationError(
                f"the file was made with a step '{change.step}' that is not registered; known are: "
                f"{', '.join(known)}"
            )
        try:
            state = known[change.step].replay(state, change)
        except (KeyError, RuntimeError, ValueError) as error:
            raise VerificationError(
                f"step '{change.step}' of the file does not fit this model ({error})"
            ) from error
    return state
