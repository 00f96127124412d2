"""Vela, the compiler for Arm's Ethos-U, as a command: what would run on the processor, how fast."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

from qtool.backends.readable_file import AcceleratorFacts
from qtool.core.atomic import scratch_folder
from qtool.core.errors import VerificationError
from qtool.core.versions import version_of

PACKAGE = "ethos-u-vela"
TITLE = "Vela"
ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")
"""Configurations that are compiled for."""
_TIMEOUT = 300  # seconds
_OPERATORS = re.compile(r"^(CPU|NPU) operators = (\d+)", re.MULTILINE)
_START = "from ethosu.vela.vela import main; main()"


def version() -> str | None:
    """Return the installed version, None if it is not installed."""
    return version_of(PACKAGE) or None


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
            raise VerificationError(f"{TITLE} needs more than {_TIMEOUT} s for {path}") from error
        counts = {kind: int(n) for kind, n in _OPERATORS.findall(done.stdout)}
        summary = next(folder.glob("*_summary_*.csv"), None)
        if done.returncode or summary is None or "NPU" not in counts:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise VerificationError(f"{TITLE} refuses {path}: {last[-1] if last else 'no message'}")
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
