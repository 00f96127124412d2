"""A TFLite file in a few lines: where it comes from, its interface, what it needs."""

from __future__ import annotations

from qtool.backends.tflite import microcontroller, vela
from qtool.backends.tflite.tflite_file import Port, TfliteFile
from qtool.core.errors import VerificationError


def describe_file(file: TfliteFile) -> str:
    """Return origin, interface and memory of a file, and where Ethos-U runs it."""
    return "\n".join([_origin(file), *_interface(file), *describe_placement(file)])


def _origin(file: TfliteFile) -> str:
    known = {k: file.metadata.get(k) for k in ("version", "target", "plan")}
    if not all(isinstance(v, str) for v in known.values()):
        return "written by another tool than qtool"
    return f"written by qtool {known['version']} for {known['target']}, plan {known['plan']}"


def _interface(file: TfliteFile) -> list[str]:
    lines = [f"input {_port(p)}" for p in file.inputs]
    return [*lines, *(f"output {_port(p)}" for p in file.outputs)]


def _port(port: Port) -> str:
    sizes = [port.shape[i] for i in port.order]
    shape = ", ".join("batch" if s < 0 else str(s) for s in sizes)
    last = ", channels last" if port.order == (0, 2, 3, 1) else ""
    params = port.params
    text = f"'{port.name}': {port.dtype} [{shape}]{last}"
    if params is None:
        return text
    return f"{text}, scale {float(params.scale):.6g}, zero point {int(params.zero_point)}"


def describe_placement(file: TfliteFile) -> list[str]:
    """Return the memory on a microcontroller, and the placement on Ethos-U where Vela is here.

    Only for files of one sample in integers, which a microcontroller takes.
    """
    if not file.is_fixed or any(p.params is None for p in (*file.inputs, *file.outputs)):
        return []
    lines = [f"microcontroller: {microcontroller.describe(file)}"]
    if vela.version() is None:
        return [*lines, f"Ethos-U: pip install {vela.PACKAGE} reports operators, cycles and SRAM"]
    return [*lines, *(_placement(file, accelerator) for accelerator in vela.ACCELERATORS)]


def _placement(file: TfliteFile, accelerator: str) -> str:
    try:
        return f"{vela.TITLE} {vela.version()}, {vela.compile_for(file.path, accelerator)}"
    except VerificationError as error:
        return str(error)
