"""Files on microcontrollers: how much memory they need, and where an accelerator runs them."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.backends.model_file import AcceleratorFacts, Deployment
from qtool.backends.onnx.self_test_format import KEY
from qtool.core.atomic import scratch_folder
from qtool.core.errors import PlanError, VerificationError
from qtool.core.remedies import Argument
from qtool.core.versions import version_of
from qtool.plugins.tflite import litert, tflm
from qtool.plugins.tflite.conversion_record import ENTRY, SOURCE
from qtool.plugins.tflite.litert_file import LitertFile

if TYPE_CHECKING:
    from qtool.planning.targets import Target

TARGET = "tflite-micro"
"""The name of the target."""

_PACKAGE = "ethos-u-vela"
_TITLE = "Vela"
_ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")
"""Configurations that are compiled for."""
_NO_ARENA = (
    f"pip install {tflm.PACKAGE} measures the size of the arena, which is an estimate in C source "
    "without it"
)
_TIMEOUT = 300  # seconds
_OPERATORS = re.compile(r"^(CPU|NPU) operators = (\d+)", re.MULTILINE)
_START = "from ethosu.vela.vela import main; main()"


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


def flash_bytes(file: LitertFile) -> int:
    """Return the bytes of a file as a microcontroller has it: without what none reads there."""
    entries = (file.model.metadata.get(name, b"") for name in (ENTRY, SOURCE, KEY))
    return file.path.stat().st_size - sum(map(len, entries))


def describe(file: LitertFile) -> str:
    """Describe the memory that a network needs, in a sentence."""
    flash = f"flash {flash_bytes(file) / 1024:.1f} KiB"
    if tflm.version() is None:
        return f"{flash}; {_NO_ARENA}"
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
    if version() is None:
        return [*lines, f"Ethos-U: pip install {_PACKAGE} reports operators, cycles and SRAM"]
    return [*lines, *(_placement(file, accelerator) for accelerator in _ACCELERATORS)]


def _placement(file: LitertFile, accelerator: str) -> str:
    try:
        return f"{_TITLE} {version()}, {compile_for(file.path, accelerator)}"
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
        notes.append(_NO_ARENA)
    rows: list[AcceleratorFacts] = []
    accelerators = _ACCELERATORS if version() is not None else ()
    try:
        rows += [compile_for(file.path, a) for a in accelerators]
    except VerificationError as error:
        notes.append(str(error))
    if version() is None:
        notes.append(f"pip install {_PACKAGE} reports operators, cycles and SRAM on Ethos-U")
    return Deployment(
        flash,
        None if arena is None else arena.total,
        None if arena is None else arena.tensors,
        "" if version() is None else f"{_TITLE} {version()}",
        tuple(rows),
        tuple(notes),
    )


def version() -> str | None:
    """Return the installed version, None if it is not installed."""
    return version_of(_PACKAGE) or None


def compile_for(path: str | Path, accelerator: str) -> AcceleratorFacts:
    """Compile a file for an accelerator and return the compiler's estimates.

    Raises:
        VerificationError: Vela refuses the file.
    """
    with scratch_folder() as folder:
        command = [sys.executable, "-c", _START, str(Path(path).resolve())]
        command += ["--accelerator-config", accelerator, "--output-dir", str(folder)]
        try:
            done = subprocess.run(  # noqa: S603  # this Python, and a file's path
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise VerificationError(f"{_TITLE} needs more than {_TIMEOUT} s for {path}") from error
        counts = {kind: int(n) for kind, n in _OPERATORS.findall(done.stdout)}
        summary = next(folder.glob("*_summary_*.csv"), None)
        if done.returncode or summary is None or "NPU" not in counts:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise VerificationError(
                f"{_TITLE} refuses {path}: {last[-1] if last else 'no message'}"
            )
        with summary.open(newline="") as file:
            row = next(csv.DictReader(file))
    flash = sum(float(row[f"{kind}_flash_memory_used"]) for kind in ("on_chip", "off_chip"))
    operators = counts["NPU"] + counts.get("CPU", 0)
    return AcceleratorFacts(
        accelerator,
        operators,
        counts["NPU"] / operators if operators else 0.0,
        int(float(row["cycles_total"])),
        1000 * float(row["inference_time"]),
        round(1024 * float(row["sram_memory_used"])),
        round(1024 * flash),
    )
