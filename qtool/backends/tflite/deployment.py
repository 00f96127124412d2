"""What a file needs on a microcontroller, and where its operators run with an accelerator."""

from __future__ import annotations

from qtool.backends.model_file import AcceleratorFacts, Deployment
from qtool.backends.tflite import microcontroller, tflm, vela
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.core.errors import VerificationError


def measure_deployment(file: TfliteFile) -> Deployment | None:
    """Return what a TFLite file needs on a microcontroller; None if it does not run there.

    That is a file for one sample, with integers at the interface.
    """
    if not file.is_fixed or any(p.params is None for p in (*file.inputs, *file.outputs)):
        return None
    flash, notes = microcontroller.flash_bytes(file), list[str]()
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
