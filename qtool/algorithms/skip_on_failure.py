"""A step that fails on a network, or has too few samples, is skipped with a note."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from qtool import distributed
from qtool.algorithms.pipeline import ConversionState
from qtool.core.errors import PassError

NO_SAMPLES = "skipped, since the calibration kept no samples; calibrate with this step chosen"
TOO_FEW = "skipped, since the calibration kept too few samples for it ({})"
LESS_ACCURATE = "skipped, since it was less accurate on held-out samples"

Run = Callable[[ConversionState], ConversionState]

FAILURES = (ArithmeticError, LookupError, PassError, RuntimeError, TypeError, ValueError)
"""Raised by operators for sizes or values they do not take, and by a rewrite after which the
network computes something else."""


def skip_on_failure(name: str) -> Callable[[Run], Run]:
    """Decorate the `run` of a step: where it fails, the state is returned unchanged, with a note.

    For steps that run by default and evaluate the network on parts of the data, or backwards: not
    every network can do that.
    """

    def decorate(run: Run) -> Run:
        @wraps(run)
        def guarded(state: ConversionState) -> ConversionState:
            try:
                return run(state)
            except FAILURES as error:
                if distributed.shares_steps():
                    raise  # other ranks may wait for this one; the error ends them all
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                return state.with_notes(f"{name}: skipped, since it failed ({why})")

        return guarded

    return decorate
