"""The pipeline of a conversion: steps propose a new state, held-out samples judge it.

A step declares the statistics it needs (probes), decides by them, and proposes another state with a
record of what it did (`Change`). The pipeline accepts the proposal, or leaves the state as it was
and adds one note. The records are stored in the metadata of the file. A reader applies them again
to the captured model, each by the `replay` of its step, and gets the state that the file was
written from. Nothing else depends on single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from torch import fx

from qtool import distributed
from qtool.algorithms.acceptance import HOLDOUT_SAMPLES, best_candidate
from qtool.algorithms.conversion_state import FAILED, LESS_ACCURATE, ConversionState
from qtool.core.errors import PassError, PlanError, VerificationError
from qtool.core.on_use import OnUse
from qtool.core.progress import track_task
from qtool.core.types import Change
from qtool.planning.plan import Probe, QuantPlan

if TYPE_CHECKING:
    from qtool.algorithms.weight_rounding.layer_solver import LayerSolver

LAYER_SAMPLES = 128
"""On which layers are solved, of weights with 8 bits."""
replay_constants = OnUse("qtool.algorithms.layer_reconstruction:replay_constants")
reconstruct_layers = OnUse("qtool.algorithms.layer_reconstruction:reconstruct_layers")
_solve_by_rows = OnUse("qtool.algorithms.weight_rounding.layer_solver:solve_by_rows")

FAILURES = (ArithmeticError, LookupError, PassError, RuntimeError, TypeError, ValueError)
"""Raised by operators for sizes or values they do not take, and by a rewrite after which the
network computes something else."""


def _no_probes(graph: fx.Graph, plan: QuantPlan) -> Sequence[Probe]:
    return ()


def _record_only(state: ConversionState, change: Change) -> ConversionState:
    return state.with_change(change)


class Scope(Enum):
    """What a step needs at once. All but `NETWORK` also run block by block.

    Attributes:
        WEIGHTS: `propose` reads the plan, its parameters and the weights alone, no samples and
            statistics, and no layer depends on another one. On a block it runs before the layers
            of that are solved.
        LAYER: `solve_layer` solves one layer after the other, see `layer_step`.
        PART: `propose` takes a part of a network, too, and fits its results: it has no probes,
            reads samples by `ConversionState.batches`, and its targets are
            `acceptance.target_outputs`. On a block it runs after the layers of that are solved,
            and is judged there.
        NETWORK: `propose` needs the whole network.
    """

    WEIGHTS = "weights"
    LAYER = "layer"
    PART = "part"
    NETWORK = "network"


@dataclass(frozen=True)
class Step:
    """One step of the pipeline.

    Attributes:
        name: its name in recipes, notes and metadata.
        propose: returns the state after the step, or a list of candidates of which the most
            accurate is taken; the same state, perhaps with a note, where there is nothing to do.
        probes: the statistics it needs of a float graph, from that graph and its plan.
        accuracy: the lowest accuracy level that includes it (see `Recipe`); "": only by name.
        samples: how many samples it trains on by running the network; they are kept with the
            calibration, and half as many held-out ones.
        replay: applies a recorded change again, without calibration. By default the change is only
            recorded: weights are read from the codes in the file.
        low_bits: `samples` for weights of fewer than 8 bits, if that is more.
        judges: how many held-out samples choose among its candidates, and decide whether the best
            is accepted; 0: the first always is.
        optional: where it fails, the state stays as it was, with a note. For steps that run by
            default and evaluate the network on parts of the data, or backwards: not every network
            can do that.
        scope: what it needs at once, which decides whether it runs block by block.
        solve_layer: solves one layer, of a step with `Scope.LAYER`.
        reason: why `solve_layer` changes weights.
    """

    name: str
    propose: Callable[[ConversionState], ConversionState | list[ConversionState]]
    probes: Callable[[fx.Graph, QuantPlan], Sequence[Probe]] = _no_probes
    accuracy: str = "fast"
    samples: int = 0
    replay: Callable[[ConversionState, Change], ConversionState] = _record_only
    low_bits: int = 0
    judges: int = 0
    optional: bool = False
    scope: Scope = Scope.NETWORK
    solve_layer: LayerSolver | None = None
    reason: str = ""


SOLVE = Step("solve", ConversionState.solved, scope=Scope.WEIGHTS)
"""Solves scale and zero point of every point of the plan; the one step that always runs."""


def layer_step(
    name: str,
    solve: LayerSolver,
    reason: str,
    *,
    accuracy: str = "fast",
    samples: int = LAYER_SAMPLES,
    low_bits: int = 0,
) -> Step:
    """Return a step that runs in memory and block by block; biases are corrected for the new
    weights.

    Args:
        name, accuracy, samples, low_bits: see `Step`.
        solve: proposes the weights of one layer.
        reason: why weights change, for the file.
    """
    return Step(
        name,
        partial(
            reconstruct_layers,
            step=name,
            reason=reason,
            solver=partial(_solve_by_rows, name, solve),
        ),
        accuracy=accuracy,
        samples=samples,
        replay=replay_constants,
        low_bits=low_bits,
        judges=HOLDOUT_SAMPLES,
        optional=True,
        scope=Scope.LAYER,
        solve_layer=solve,
        reason=reason,
    )


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
            state = run_step(step, state)
    return state


def run_step(step: Step, state: ConversionState) -> ConversionState:
    """Return the state after a step, or the state before it with a note on why it was skipped."""
    try:
        proposed = step.propose(state)
        candidates = proposed if isinstance(proposed, list) else [proposed]
        changed = any(len(c.changes) > len(state.changes) for c in candidates)
        if not step.judges or not changed:
            return candidates[0]
        best = best_candidate(state, candidates, step.judges)
    except FAILURES as error:
        if not step.optional or distributed.shares_steps():
            raise  # among ranks others may wait for this one; the error ends them all
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        return state.with_notes(f"{step.name}: {FAILED.format(why)}")
    return state.with_notes(f"{step.name}: {LESS_ACCURATE}") if best is None else best


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
