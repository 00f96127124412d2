"""ONNX files on emulated processors, compared with this machine."""

from qtool.backends.onnxruntime.emulation.available import Emulators, check_available, emulators
from qtool.backends.onnxruntime.emulation.compare_cpus import TIMEOUT, run_on_cpus
from qtool.backends.onnxruntime.emulation.compare_webgpu import run_on_webgpu
from qtool.backends.onnxruntime.emulation.cpus import (
    ALL,
    CPUS,
    WEBGPU,
    Cpu,
    Family,
    names_all,
    parse_cpus,
)
from qtool.backends.onnxruntime.emulation.result import CpuComparison, CpuResult, FirstDifference
from qtool.backends.onnxruntime.emulation.webgpu_result import (
    NodeDifference,
    ProviderOutput,
    WebGpuComparison,
)

__all__ = [
    "ALL",
    "CPUS",
    "TIMEOUT",
    "WEBGPU",
    "Cpu",
    "CpuComparison",
    "CpuResult",
    "Emulators",
    "Family",
    "FirstDifference",
    "NodeDifference",
    "ProviderOutput",
    "WebGpuComparison",
    "check_available",
    "emulators",
    "names_all",
    "parse_cpus",
    "run_on_cpus",
    "run_on_webgpu",
]
