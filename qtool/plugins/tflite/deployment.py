"""Files on microcontrollers: how much memory they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtool.backends.model_file import Deployment
from qtool.core.errors import PlanError, VerificationError
from qtool.core.remedies import Argument
from qtool.plugins.tflite import litert, tflm
from qtool.plugins.tflite.litert_file import LitertFile

if TYPE_CHECKING:
    from qtool.planning.targets import Target

TARGET = "tflite-micro"
"""The name of the target."""

_NO_ARENA = f"pip install {tflm.PACKAGE} measures the size of the arena"


def check_measurable(target: Target) -> None:
    """Check that LiteRT can time files of a target on this machine.

    Raises:
        PlanError: they are for microcontrollers.
        InstallError: LiteRT is not installed.
    """
    if target.name == TARGET:
        raise PlanError(
            "a search measures time, and a microcontroller has another than this machine",
            Argument("--target", "tflite", "use {}"),
        )
    litert.require()


def describe(file: LitertFile) -> str:
    """Describe the memory that a network needs, in a sentence."""
    needs = _needs(file)
    flash, arena, tensors = needs.flash_bytes, needs.arena_bytes, needs.tensor_bytes
    if arena is None or tensors is None:
        return f"flash {flash / 1024:.1f} KiB; {needs.notes[0]}"
    return (
        f"flash {flash / 1024:.1f} KiB, arena {arena / 1024:.1f} KiB ({tensors / 1024:.1f} of "
        f"tensors, {(arena - tensors) / 1024:.1f} persistent; 64-bit, a microcontroller needs less)"
    )


def is_deployable(file: LitertFile) -> bool:
    """Return whether a file is for one sample, with integers at the interface."""
    return file.is_fixed and all(p.params is not None for p in (*file.inputs, *file.outputs))


def measure_deployment(file: LitertFile) -> Deployment | None:
    """Return what a TFLite file needs on a microcontroller; None if it does not run there."""
    return _needs(file) if is_deployable(file) else None


def _needs(file: LitertFile) -> Deployment:
    flash = file.path.stat().st_size
    if tflm.version() is None:
        return Deployment(flash, notes=(_NO_ARENA,))
    try:
        arena = tflm.arena(file.path)
    except VerificationError as error:
        return Deployment(flash, notes=(str(error),))
    return Deployment(flash, arena.total, arena.tensors)
