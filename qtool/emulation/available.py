"""Which emulators are here, and what to type for those that are not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qtool.emulation.cpus import CPUS, Cpu, Family
from qtool.emulation.places import arm_folder, sysroot, web_folder, web_version
from qtool.emulation.processes import run_command
from qtool.errors import EmulationError
from qtool.formats import table
from qtool.records import to_json
from qtool.runtimes.onnxruntime import ONNXRUNTIME

__all__ = ["Emulator", "Emulators", "check_available", "emulators", "machine_type"]

QEMU_X86, QEMU_ARM = "qemu-x86_64", "qemu-aarch64"
_LEAST = (7, 2)  # QEMU's first version whose translator has AVX2
_SECONDS = 60.0
_INSTALL = {
    Family.X86: "qtool emulators install",
    Family.ARM: "qtool emulators install --arm",
    Family.WEB: "qtool emulators install --web",
}


@dataclass(frozen=True)
class Emulator:
    """A program or a set of packages that emulation needs.

    Attributes:
        name: what it is.
        family: of the processors that need it.
        version: empty where it is missing.
        where: the path of the program, or the folder.
        problem: why it is of no use here; empty where it works.
    """

    name: str
    family: Family
    version: str
    where: str
    problem: str = ""


@dataclass(frozen=True)
class Emulators:
    """What is installed, and which processors that makes available.

    Attributes:
        parts: programs and packages.
        cpus: processor -> why it is not available; empty where it is.
    """

    parts: tuple[Emulator, ...]
    cpus: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_json(self)
        return found

    def __str__(self) -> str:
        rows = [(p.name, p.version or "-", p.problem or p.where) for p in self.parts]
        first = table(("emulator", "version", "where"), rows, align="lll")
        said = [(n, CPUS[n].description, why or "available") for n, why in self.cpus.items()]
        return f"{first}\n\n{table(('CPU', 'what it is', 'state'), said, align='lll')}"


def emulators() -> Emulators:
    """Say which emulators are installed, and which processors `verify_on` can run files on.

    Raises:
        EmulationError: a program that is installed does not tell its version.
    """
    parts = tuple(part for make in _PARTS.values() for part in make())
    return Emulators(parts, {cpu.name: _missing(cpu, parts) for cpu in CPUS.values()})


def check_available(cpus: Iterable[Cpu]) -> None:
    """Check that files can be run on all of these processors.

    Raises:
        EmulationError: some cannot be emulated; with the command that installs what is missing.
    """
    wanted = tuple(cpus)
    parts = [part for family in dict.fromkeys(c.family for c in wanted) for part in _PARTS[family]()]
    lacking = [(cpu.name, why) for cpu in wanted if (why := _missing(cpu, parts))]
    if not lacking:
        return
    reasons: dict[str, list[str]] = {}
    for name, why in lacking:
        reasons.setdefault(why, []).append(name)
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    raise EmulationError(f"cannot emulate {said}")


def machine_type() -> str:
    """Return this machine's kind of processor: x86_64, aarch64 or another."""
    import platform

    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _missing(cpu: Cpu, parts: Iterable[Emulator]) -> str:
    """Why a processor cannot be emulated, and what to type; empty where it can."""
    bad = [p for p in parts if p.family is cpu.family and p.problem]
    if not bad:
        return ""
    said = ", ".join(f"{p.name} {p.problem}" for p in bad)
    return f"{said}; install with `{_INSTALL[cpu.family]}`"


def _x86_parts() -> list[Emulator]:
    return [_qemu(QEMU_X86, Family.X86)]


def _arm_parts() -> list[Emulator]:
    version = ONNXRUNTIME.version() or ""
    found, where = sysroot(version), str(arm_folder(version))
    packages = f"aarch64 packages of onnxruntime {version}"
    if found is None:
        return [
            _qemu(QEMU_ARM, Family.ARM),
            Emulator(packages, Family.ARM, "", where, "are not installed"),
        ]
    state = f"{found.onnxruntime}, Python {found.python}"
    return [
        _qemu(QEMU_ARM, Family.ARM),
        Emulator(packages, Family.ARM, state, where),
    ]


def _web_parts() -> list[Emulator]:
    node, version = shutil.which("node"), web_version()
    told = _version_of(node) if node else ""
    absent = "is not installed"
    return [
        Emulator("node", Family.WEB, told, node or "", "" if node else absent),
        Emulator(
            "onnxruntime-web", Family.WEB, version, str(web_folder()), "" if version else absent
        ),
    ]


_PARTS: Mapping[Family, Callable[[], list[Emulator]]] = {
    Family.X86: _x86_parts,
    Family.ARM: _arm_parts,
    Family.WEB: _web_parts,
}


def _qemu(name: str, family: Family) -> Emulator:
    path = shutil.which(name)
    if family is Family.X86 and machine_type() != "x86_64":
        here = f"runs this machine's own packages, which are for {machine_type()}, not x86_64"
        return Emulator(name, family, "", path or "", here)
    if path is None:
        return Emulator(name, family, "", "", "is not installed")
    version = _version_of(path)
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    least = ".".join(map(str, _LEAST))
    old = f"is version {version}, and {least} or newer is needed" if numbers < _LEAST else ""
    return Emulator(name, family, version, path, old)


@lru_cache
def _version_of(program: str) -> str:
    told = run_command([program, "--version"], program, _SECONDS)
    found = re.search(r"\d+(\.\d+)+", told)
    if found is None:
        raise EmulationError(f"{program} --version tells no version")
    return found[0]
