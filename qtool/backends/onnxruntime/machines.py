"""Which targets this machine has the kernels of, and can time."""

from __future__ import annotations

from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.core import plugins
from qtool.core.errors import PlanError, VerificationError
from qtool.core.option_names import MODEL_FORMATS, MODEL_SUFFIXES
from qtool.core.remedies import Argument
from qtool.planning.targets import Target


def runs_here(chosen: Target) -> bool:
    """Return whether ONNX Runtime on this machine has the kernels that a target is for."""
    fits = not chosen.machines or machine_profile() in chosen.machines
    return chosen.runtime == "onnxruntime" and fits


def check_measurable(target: Target) -> None:
    """Check that ONNX Runtime has the kernels of a target on this machine, and that the other
    runtime that its speed counts in, if there is one, is here.

    Raises:
        PlanError: it has not.
        VerificationError: it is not.
    """
    if runs_here(target):
        if target.timed_in and (why := plugins.part("runtimes", target.timed_in).problem()):
            raise VerificationError(f"a search measures time in {target.timed_in}: {why}")
        return
    others = [s for s, name in MODEL_FORMATS.items() if name in target.file.formats]
    remedies = [
        Argument("-o", f"FILE{s}", "write a file for it, {}")
        for s in others
        if s != MODEL_SUFFIXES[0]
    ]
    raise PlanError(
        f"a search measures time, and files for {target.name} do not run in ONNX Runtime here",
        Argument("--target", text="choose another {}"),
        *remedies,
    )
