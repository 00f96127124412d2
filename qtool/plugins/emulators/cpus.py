"""The processors that can be emulated: one row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from qtool.core.errors import EmulationError
from qtool.core.remedies import CallEdit

ALL = "all"
"""The name for all rows."""


class Family(Enum):
    """What starts ONNX Runtime on a processor."""

    X86 = "x86"
    """qemu-x86_64 and the Python environment of this process."""
    ARM = "arm"
    """qemu-aarch64, an aarch64 sysroot, and aarch64 wheels."""
    WEB = "web"
    """node and onnxruntime-web."""


@dataclass(frozen=True)
class Cpu:
    """A processor that can be emulated.

    Attributes:
        name: as in `--cpu`.
        family: what starts ONNX Runtime there.
        description: the instructions that decide how int8 is computed.
        model: the argument of qemu's `-cpu`; empty for WebAssembly.
        part: the line `CPU part` of /proc/cpuinfo; ARM only.
        features: the line `Features` of /proc/cpuinfo; ARM only.
    """

    name: str
    family: Family
    description: str
    model: str = ""
    part: str = ""
    features: str = ""


_A53 = "fp asimd evtstrm aes pmull sha1 sha2 crc32"
_N1 = f"{_A53} atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_N2 = (
    f"{_N1} jscvt fcma sha3 sm3 sm4 sha512 asimdfhm dit uscat ilrcpc flagm sb dcpodp flagm2 frint "
    "i8mm bf16 dgh bti"
)
_ROWS = (
    Cpu("haswell", Family.X86, "x86-64 with AVX2 and FMA, without VNNI", "Haswell"),
    Cpu("nehalem", Family.X86, "x86-64 with SSE4.2, without AVX", "Nehalem"),
    Cpu("cortex-a53", Family.ARM, "ARMv8.0, no dot product", "cortex-a53", "0xd03", _A53),
    Cpu("neoverse-n1", Family.ARM, "ARMv8.2, dot product", "neoverse-n1", "0xd0c", _N1),
    Cpu("neoverse-n2", Family.ARM, "ARMv9 without SVE, i8mm", "max,sve=off", "0xd49", _N2),
    Cpu("wasm", Family.WEB, "WebAssembly with SIMD, in node"),
)
CPUS: Mapping[str, Cpu] = {row.name: row for row in _ROWS}


def parse_cpus(names: str | Iterable[str]) -> tuple[Cpu, ...]:
    """Return the processors with these names, each once.

    Args:
        names: a list, or one text with commas between the names; `all` selects every processor.

    Raises:
        EmulationError: a name is unknown, or there is none.
    """
    parts = names.split(",") if isinstance(names, str) else list(names)
    selected = [n.strip().lower() for n in parts if n.strip()]
    known = ", ".join(CPUS)
    if not selected:
        raise EmulationError("no processor is named", CallEdit(f"choose from {known}, or {ALL}"))
    if unknown := next((n for n in selected if n not in CPUS and n != ALL), None):
        raise EmulationError(
            f"unknown processor '{unknown}'", CallEdit(f"choose from {known}, or {ALL}")
        )
    expanded = (name for n in selected for name in (CPUS if n == ALL else (n,)))
    return tuple(CPUS[name] for name in dict.fromkeys(expanded))


def names_all(names: str | Iterable[str]) -> bool:
    """Return whether `ALL` is among the names; see `parse_cpus`."""
    parts = names.split(",") if isinstance(names, str) else names
    return ALL in (n.strip().lower() for n in parts)


def cpuinfo(cpu: Cpu) -> str:
    """Return /proc/cpuinfo of an ARM processor with one core.

    ONNX Runtime chooses its ARM kernels by this file, not by the features of qemu's `-cpu`; its
    import crashes if the file is that of an x86 machine.
    """
    lines = {
        "processor": "0",
        "BogoMIPS": "243.75",
        "Features": cpu.features,
        "CPU implementer": "0x41",
        "CPU architecture": "8",
        "CPU variant": "0x0",
        "CPU part": cpu.part,
        "CPU revision": "1",
    }
    return "".join(f"{key}\t: {value}\n" for key, value in lines.items()) + "\n"
