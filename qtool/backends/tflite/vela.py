"""Vela, the compiler for Arm's Ethos-U, as a command: what would run on the processor, how fast."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Placement:
    """The result of compiling a file for one accelerator.

    Attributes:
        accelerator: its configuration.
        npu: number of operators on it.
        cpu: number of operators that are left to the processor.
        cycles: estimated cycles of one inference.
        milliseconds: estimated time of one inference at the clock of the configuration.
        sram: KiB of working memory.
        flash: KiB of commands and compressed weights.
    """

    accelerator: str
    npu: int
    cpu: int
    cycles: int
    milliseconds: float
    sram: float
    flash: float

    @property
    def share(self) -> float:
        """Share of the operators on the accelerator, 0 to 1."""
        return self.npu / (self.npu + self.cpu) if self.npu + self.cpu else 0.0

    def __str__(self) -> str:
        return (
            f"{self.accelerator}: {100 * self.share:.0f} % of {self.npu + self.cpu} operators on "
            f"the NPU, {self.cycles:,} cycles ({self.milliseconds:.2f} ms), SRAM {self.sram:.1f} "
            f"KiB, flash {self.flash:.1f} KiB"
        )


def version() -> str | None:
    """Return the installed version, None if it is not installed."""
    return version_of(PACKAGE) or None


def compile_for(path: str | Path, accelerator: str) -> Placement:
    """Compile a file and return what becomes of it.

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
    memory = [float(row[f"{kind}_flash_memory_used"]) for kind in ("on_chip", "off_chip")]
    return Placement(
        accelerator,
        counts["NPU"],
        counts.get("CPU", 0),
        int(float(row["cycles_total"])),
        1000 * float(row["inference_time"]),
        float(row["sram_memory_used"]),
        sum(memory),
    )
