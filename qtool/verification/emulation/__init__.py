"""ONNX files on processors that are not present: by emulation, compared with this machine."""

from qtool.verification.emulation.available import Emulators, check_available, emulators
from qtool.verification.emulation.compare_cpus import TIMEOUT, run_on
from qtool.verification.emulation.cpus import ALL, CPUS, Cpu, Family, cpus_named
from qtool.verification.emulation.install import install_emulators
from qtool.verification.emulation.result import CpuComparison, CpuResult, FirstDifference

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
