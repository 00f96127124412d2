"""A step that fails on a network, or has too few samples, leaves it as it was, and says so in one
sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from qtool import distributed
from qtool.algorithms.pipeline import ConversionState
from qtool.core.errors import PassError

NO_SAMPLES = "left out, since the calibration kept no samples; calibrate with this step chosen"
TOO_FEW = "left out, since the calibration kept too few samples for it ({})"

Run = Callable[[ConversionState], ConversionState]

FAILURES = (ArithmeticError, LookupError, PassError, RuntimeError, TypeError, ValueError)
"""What an operator raises for sizes or values that it does not take, and what a rewriting raises
where the network computes something else after it."""


def skip_on_failure(name: str) -> Callable[[Run], Run]:
    """For the run of a step that is taken unasked, and runs the network on parts of the data, or
    backwards: not every network can do that."""

    def made(run: Run) -> Run:
        @wraps(run)
        def guarded(state: ConversionState) -> ConversionState:
            try:
                return run(state)
            except FAILURES as error:
                if distributed.shares_steps():
                    raise  # others may wait in the middle of it; they are told, and all end
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                return state.with_notes(f"{name}: left out, since it failed ({why})")

        return guarded

    return made
