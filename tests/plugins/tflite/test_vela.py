"""What Vela prints and writes, as the estimates of a report."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from qtool.plugins.tflite import deployment

COLUMNS = (
    "cycles_total,inference_time,sram_memory_used,on_chip_flash_memory_used,"
    "off_chip_flash_memory_used\n1200.0,0.0024,1.5,0.0,2.25\n"
)


def test_its_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--output-dir") + 1])
        (folder / "net_summary_x.csv").write_text(COLUMNS)
        printed = "CPU operators = 1 (25%)\nNPU operators = 3 (75%)\n"
        return subprocess.CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(subprocess, "run", run)
    facts = deployment.compile_for("net.tflite", "ethos-u55-128")
    assert (facts.operators, facts.npu_share) == (4, 0.75)
    assert (facts.cycles, facts.milliseconds) == (1200, 2.4)
    assert (facts.sram_bytes, facts.flash_bytes) == (1536, 2304)
    assert str(facts) == (
        "ethos-u55-128: 75 % of 4 operators on the NPU, 1,200 cycles (2.40 ms), SRAM 1.5 KiB, "
        "flash 2.2 KiB"
    )
