"""The pipeline of a conversion: a frozen state, and steps that return a new one.

A step declares the statistics it needs (probes), decides by them, and returns another state with a
record of what it did (`Change`). The records are stored in the metadata of the file. A reader
applies them again to the captured model, each by the `replay` of its step, and gets the state that
the file was written from. Nothing else depends on single steps.
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

    Attributes:
        captured: the captured model in canonical form, the reference of comparisons.
        graph: the float graph in the forms of the target, as the steps have changed it.
        plan: of that graph.
        calibration: statistics of its tensors; None where a file is read back.
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
        """Return the state before the first step."""
        graph, _ = captured.for_target(plan.target)
        return cls(captured, graph, plan, calibration)

    def batches(
        self, size: int = 32, limit: int | None = None, holdout: bool | None = False
    ) -> list[Batch]:
        """Return the calibration samples as arguments of the graph, in batches that it accepts.

        Args:
            size: samples of a batch; limit, holdout: see `CalibrationSamples.batches`.
        """
        if self.calibration is None:
            return []
        fewest, highest = self.graph.batch_size_range()
        size = max(size, fewest)
        batches = self.calibration.kept_samples.batches(min(size, highest or size), limit, holdout)
        whole = None if self.graph.can_split_batches else Batch(*self.graph.example).size
        sizes = ((t, Batch(tuple(t)).size) for t in batches)  # the last may be too small
        fitting = (t for t, size in sizes if (size >= fewest if whole is None else size == whole))
        return [self.graph.call_of(t) for t in fitting]

    def quick_batches(
        self, size: int = 32, limit: int | None = None, holdout: bool | None = False
    ) -> list[Batch]:
        """Return `batches` in channels-last layout: convolutions of few channels are twice as fast,
        with other last bits."""
        batches = self.batches(size, limit, holdout)
        tensors = ([_to_channels_last(t) for t in self.graph.tensors_of(b)] for b in batches)
        return [self.graph.call_of(each) for each in tensors]

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


def _no_probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    return ()


def _record_only(state: ConversionState, change: Change) -> ConversionState:
    return state.with_change(change)


@dataclass(frozen=True)
class Step:
    """One step of the pipeline.

    Attributes:
        name: in recipes, notes and metadata.
        run: returns the state after the step; the same one where it has nothing to do.
        probes: the statistics it needs of a float graph, from that graph and its plan.
        accuracy: the lowest accuracy level that includes it (see `Recipe`); "": only by name.
        samples: how many samples it trains on by running the network; they are kept with the
            calibration, and half as many held-out ones.
        replay: applies a recorded change again, without calibration. By default the change is only
            recorded: weights are read from the codes in the file.
        low_bits: `samples` for weights of fewer than 8 bits, if that is more.
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
    parameters = solve_parameters(state.graph.module, state.plan, state.calibration)
    return replace(state, parameters=parameters)


SOLVE = Step("solve", _solve)
"""Solves scale and zero point of every point of the plan; the one step that always runs."""


def collect_probes(steps: Iterable[Step], graph: fx.Graph, plan: QuantPlan) -> tuple[Probe, ...]:
    """Return the probes of all steps, each one once.

    Raises:
        PlanError: two steps have different probes of one name.
    """
    probes: dict[str, Probe] = {}
    for step in steps:
        for probe in step.probes(graph, plan):
            if probes.setdefault(probe.name, probe) != probe:
                raise PlanError(f"step {step.name}: another step has a probe '{probe.name}'")
    return tuple(probes.values())


def run_steps(steps: Iterable[Step], state: ConversionState) -> ConversionState:
    """Run the steps in order; return the state after the last one."""
    for step in steps:
        with track_task(step.name):
            state = step.run(state)
    return state


def replay_changes(
    steps: Iterable[Step], state: ConversionState, changes: Iterable[Change]
) -> ConversionState:
    """Apply recorded changes to a state, in order.

    Raises:
        VerificationError: the step of a change is not registered, or does not fit this model.
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
