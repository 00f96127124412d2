"""The machine and the package versions of a measurement."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from qtool.core.versions import version_of

PACKAGES = ("qtool", "onnxruntime", "torch", "onnx", "numpy")
# instruction sets that int8 kernels on x86 need to be fast, as in /proc/cpuinfo
FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8")


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        cpu: model name.
        cores: available to this process.
        memory_gib: memory of the machine.
        features: instruction sets relevant to int8.
        versions: package -> version.
    """

    cpu: str
    cores: int
    memory_gib: float
    system: str
    features: tuple[str, ...]
    versions: dict[str, str]


def this_machine() -> Machine:
    """Return this machine; unknown fields are empty."""
    facts = _cpu_facts()
    flags = facts.get("flags", "").split()
    return Machine(
        facts.get("model name", platform.processor() or platform.machine()),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        _memory(),
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        tuple(f for f in FEATURES if f in flags),
        {name: version for name in PACKAGES if (version := version_of(name))},
    )


def _cpu_facts() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo, {} without that file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError, AttributeError):
        return 0.0
