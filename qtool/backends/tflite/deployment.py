"""Files on microcontrollers: how much memory they need, and where an accelerator runs them."""

from __future__ import annotations

from qtool.backends.onnx.self_test_format import KEY
from qtool.backends.readable_file import AcceleratorFacts, Deployment
from qtool.backends.tflite import tflm, vela
from qtool.backends.tflite.conversion_record import ENTRY, SOURCE
from qtool.backends.tflite.litert_file import LitertFile
from qtool.core.errors import VerificationError

TARGET = "tflite-micro"
"""The name of the target."""


def flash_bytes(file: LitertFile) -> int:
    """Return the bytes of a file as a microcontroller has it: without what none reads there."""
    entries = (file.model.metadata.get(name, b"") for name in (ENTRY, SOURCE, KEY))
    return file.path.stat().st_size - sum(map(len, entries))


def describe(file: LitertFile) -> str:
    """Describe the memory that a network needs, in a sentence."""
    flash = f"flash {flash_bytes(file) / 1024:.1f} KiB"
    if tflm.version() is None:
        return f"{flash}; pip install {tflm.PACKAGE} reports the size of the arena"
    try:
        needed = tflm.arena(file.path)
    except VerificationError as error:
        return f"{flash}; {error}"
    return (
        f"{flash}, arena {needed.total / 1024:.1f} KiB ({needed.tensors / 1024:.1f} of tensors, "
        f"{needed.persistent / 1024:.1f} persistent; 64-bit, a microcontroller needs less)"
    )


def is_deployable(file: LitertFile) -> bool:
    """Return whether a file is for one sample, with integers at the interface."""
    return file.is_fixed and all(p.params is not None for p in (*file.inputs, *file.outputs))


def describe_placement(file: LitertFile) -> list[str]:
    """Return the memory on a microcontroller, and the placement on Ethos-U where Vela is here.

    Only for files of one sample in integers, which a microcontroller takes.
    """
    if not is_deployable(file):
        return []
    lines = [f"microcontroller: {describe(file)}"]
    if vela.version() is None:
        return [*lines, f"Ethos-U: pip install {vela.PACKAGE} reports operators, cycles and SRAM"]
    return [*lines, *(_placement(file, accelerator) for accelerator in vela.ACCELERATORS)]


def _placement(file: LitertFile, accelerator: str) -> str:
    try:
        return f"{vela.TITLE} {vela.version()}, {vela.compile_for(file.path, accelerator)}"
    except VerificationError as error:
        return str(error)


def measure_deployment(file: LitertFile) -> Deployment | None:
    """Return what a TFLite file needs on a microcontroller; None if it does not run there."""
    if not is_deployable(file):
        return None
    flash, notes = flash_bytes(file), list[str]()
    arena: tflm.Arena | None = None
    try:
        arena = tflm.arena(file.path) if tflm.version() is not None else None
    except VerificationError as error:
        notes.append(str(error))
    if tflm.version() is None:
        notes.append(f"pip install {tflm.PACKAGE} reports the size of the arena")
    rows: list[AcceleratorFacts] = []
    accelerators = vela.ACCELERATORS if vela.version() is not None else ()
    try:
        rows += [vela.compile_for(file.path, a) for a in accelerators]
    except VerificationError as error:
        notes.append(str(error))
    if vela.version() is None:
        notes.append(f"pip install {vela.PACKAGE} reports operators, cycles and SRAM on Ethos-U")
    return Deployment(
        flash,
        None if arena is None else arena.total,
        None if arena is None else arena.tensors,
        "" if vela.version() is None else f"{vela.TITLE} {vela.version()}",
        tuple(rows),
        tuple(notes),
    )
