"""The runtimes that targets name, which of them can run here, and what they can time."""

from __future__ import annotations

from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.profiles import profile
from qtool.backends.runtime import Runtime
from qtool.core import plugins
from qtool.core.argument_names import argument
from qtool.core.errors import PlanError, VerificationError
from qtool.core.on_use import Table
from qtool.core.option_names import MODEL_FORMATS, MODEL_SUFFIXES
from qtool.core.remedies import Argument, CallEdit
from qtool.planning.targets import Target

RUNTIMES = Table[Runtime](
    {
        "onnxruntime": "qtool.backends.onnxruntime.session:ONNXRUNTIME",
        "openvino": "qtool.backends.openvino.runtime:OPENVINO",
    }
)


def register(new: Runtime) -> None:
    """Add a runtime of ONNX files, which targets may name.

    Raises:
        PlanError: the name is taken.
    """
    if new.name in RUNTIMES:
        raise PlanError(
            f"runtime '{new.name}' is registered already", CallEdit("choose another name")
        )
    RUNTIMES[new.name] = new


def runtime(name: str | None) -> Runtime | None:
    """Return the runtime of a target, None for a target whose runtime cannot run here."""
    return None if name is None else RUNTIMES[name]


def find_runtime(chosen: Target) -> tuple[Runtime | None, str]:
    """Return the runtime to verify files of a target in.

    Returns:
        The runtime, None if it cannot run here; a sentence if installing it or another CPU helps.
    """
    used = runtime(chosen.runtime)
    if used is None:
        return None, ""
    if not used.installed:
        return None, (
            f"{used.title} is not installed: the file was run as written in ONNX Runtime only; "
            f"pip install {used.package} has it verified where it will run"
        )
    if chosen.runtime == "onnxruntime" and not runs_here(chosen):
        cpu = profile(machine_profile()).cpus
        return None, (
            f"target {chosen.name} is not for this CPU ({cpu}); run `qtool verify` on the CPU that "
            f"it is for, or convert with {argument('--target', 'onnxruntime')}, which has the same "
            "codes on every CPU"
        )
    return used, ""


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
