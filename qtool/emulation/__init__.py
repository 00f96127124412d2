"""ONNX files on processors that are not present: by emulation, compared with this machine."""

from qtool.emulation.available import Emulators, check_available, emulators
from qtool.emulation.compare import TIMEOUT, run_on
from qtool.emulation.cpus import ALL, CPUS, Cpu, Family, cpus_named
from qtool.emulation.install import install_emulators
from qtool.emulation.result import CpuComparison, CpuResult, FirstDifference

__all__ = [
    "ALL",
    "CPUS",
    "TIMEOUT",
    "Cpu",
    "CpuComparison",
    "CpuResult",
    "Emulators",
    "Family",
    "FirstDifference",
    "check_available",
    "cpus_named",
    "emulators",
    "install_emulators",
    "run_on",
]
