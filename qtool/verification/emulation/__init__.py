"""ONNX files on emulated processors, compared with this machine."""

from qtool.verification.emulation.available import Emulators, check_available, emulators
from qtool.verification.emulation.compare_cpus import TIMEOUT, run_on_cpus
from qtool.verification.emulation.cpus import ALL, CPUS, Cpu, Family, parse_cpus
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
    "emulators",
    "install_emulators",
    "parse_cpus",
    "run_on_cpus",
]
