"""Installed emulators, and which are missing."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.errors import EmulationError
from qtool.core.formats import part, table
from qtool.core.records import to_json
from qtool.core.summary import Summary
from qtool.plugins.emulators.cpus import CPUS, Cpu, Family
from qtool.plugins.emulators.processes import run_command

QEMU_X86, QEMU_ARM = "qemu-x86_64", "qemu-aarch64"
_MIN_VERSION = (7, 2)  # the first version of QEMU with AVX2
_SECONDS = 60.0
INSTALL_PAGE = "docs/emulators.md"
_SYSROOT = "sysroot.json"


@dataclass(frozen=True)
class Emulator:
    """A program or a set of packages that emulation needs.

    Attributes:
        name: what it is.
        family: family of the processors that need it.
        version: empty if it is missing.
        where: path of the program or of the folder.
        problem: why it cannot be used; empty if it works.
        installable: whether an installation solves the problem.
    """

    name: str
    family: Family
    version: str
    where: str
    problem: str = ""
    installable: bool = True


@dataclass(frozen=True)
class Emulators:
    """Installed emulators and available processors.

    Attributes:
        parts: programs and packages.
        cpus: processor -> why it is not available; empty if it is.
    """

    parts: tuple[Emulator, ...]
    cpus: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self)
        return value

    def summary(self, title: str = "emulators") -> Summary:
        """Return how many CPUs can be emulated."""
        count = sum(not why for why in self.cpus.values())
        text = f"{part(count, len(self.cpus))} CPUs can be emulated"
        advice = _advice(self.parts).removeprefix("; ")
        return Summary(title, text, (), (advice,) if advice else ())

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return tables of the emulators and of the CPUs."""
        rows = [(p.name, p.version or "-", p.problem or p.where) for p in self.parts]
        first = table(("emulator", "version", "where"), rows, align="lll")
        cpus = [(n, CPUS[n].description, why or "available") for n, why in self.cpus.items()]
        second = table(("CPU", "description", "state"), cpus, align="lll")
        return f"{first}\n\n{second}"


@dataclass(frozen=True)
class Missing:
    """Processors that cannot be emulated.

    Attributes:
        cpus: their names.
        reason: what is missing for each, and how to install it; empty without any.
    """

    cpus: tuple[str, ...] = ()
    reason: str = ""


def emulators() -> Emulators:
    """Return which emulators are installed and on which processors `verify_on` can run files.

    Raises:
        EmulationError: the version of an installed program cannot be read.
    """
    parts = tuple(part for make in _PARTS.values() for part in make())
    return Emulators(parts, {cpu.name: _missing(cpu, parts) for cpu in CPUS.values()})


def check_available(cpus: Iterable[Cpu], some: bool = False) -> Missing:
    """Check that files can be run on these processors; return those that cannot be emulated.

    Args:
        cpus: the processors.
        some: one that can be emulated is enough.

    Raises:
        EmulationError: some cannot be emulated; with how to install what is missing.
    """
    checked = tuple(cpus)
    families = dict.fromkeys(cpu.family for cpu in checked)
    parts = [part for family in families for part in _PARTS[family]()]
    reasons: dict[str, list[str]] = {}
    for cpu in checked:
        if why := _missing(cpu, parts):
            reasons.setdefault(why, []).append(cpu.name)
    names = tuple(name for each in reasons.values() for name in each)
    why = "; ".join(f"{', '.join(each)} ({why})" for why, each in reasons.items())
    missing = Missing(names, f"{why}{_advice(parts)}" if names else "")
    if len(names) == len(checked) or (names and not some):
        raise EmulationError(f"cannot emulate {missing.reason}")
    return missing


def machine_type() -> str:
    """Return this machine's processor architecture: x86_64, aarch64 or another."""
    import platform

    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _missing(cpu: Cpu, parts: Iterable[Emulator]) -> str:
    """Return why a processor cannot be emulated; empty if it can."""
    bad = [p for p in parts if p.family is cpu.family and p.problem]
    return ", ".join(f"{p.name} {p.problem}" for p in bad)


def _advice(parts: Iterable[Emulator]) -> str:
    """Return where the installation is described; empty if it would solve no problem."""
    missing = any(p.problem and p.installable for p in parts)
    return f"; {INSTALL_PAGE} says how to install what is missing" if missing else ""


def _x86_parts() -> list[Emulator]:
    return [_qemu(QEMU_X86, Family.X86)]


def _arm_parts() -> list[Emulator]:
    version = ONNXRUNTIME.version() or ""
    root, where = sysroot(version), str(arm_folder(version))
    name = f"aarch64 packages of onnxruntime {version}"
    packages = Emulator(name, Family.ARM, "", where, "are not installed")
    if root is not None:
        packages = Emulator(name, Family.ARM, f"{root.onnxruntime}, Python {root.python}", where)
    return [_qemu(QEMU_ARM, Family.ARM), packages]


def _web_parts() -> list[Emulator]:
    node, web = shutil.which("node"), web_version()
    version = _version_of(node) if node else ""
    missing = "is not installed"
    return [
        Emulator("node", Family.WEB, version, node or "", "" if node else missing),
        Emulator("onnxruntime-web", Family.WEB, web, str(web_folder()), "" if web else missing),
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
        return Emulator(name, family, "", path or "", here, installable=False)
    if path is None:
        return Emulator(name, family, "", "", "is not installed")
    version = _version_of(path)
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    oldest = ".".join(map(str, _MIN_VERSION))
    old = f"is version {version}; {oldest} or newer is needed" if numbers < _MIN_VERSION else ""
    return Emulator(name, family, version, path, old, installable=not old)


@lru_cache
def _version_of(program: str) -> str:
    printed = run_command([program, "--version"], program, _SECONDS)
    version = re.search(r"\d+(\.\d+)+", printed)
    if version is None:
        raise EmulationError(f"{program} --version prints no version")
    return version[0]


# The cache folder for emulators, in which INSTALL_PAGE puts them.


@dataclass(frozen=True)
class Sysroot:
    """An aarch64 Python with ONNX Runtime, on this machine.

    Attributes:
        folder: holds `root` (unpacked packages of the distribution) and `site` (wheels).
        python: the version of its Python, as in "3.11".
        onnxruntime: the version of its wheel.
    """

    folder: Path
    python: str
    onnxruntime: str


def cache_folder() -> Path:
    """Return the folder for emulators: in QTOOL_CACHE, else in XDG_CACHE_HOME/qtool."""
    if own := os.environ.get("QTOOL_CACHE"):
        return Path(own).absolute() / "emulators"
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "qtool" / "emulators"


def arm_folder(version: str) -> Path:
    """Return the folder of the sysroot for a version of ONNX Runtime."""
    return cache_folder() / f"arm-onnxruntime-{version}"


def web_folder() -> Path:
    """Return the folder that contains `node_modules` of onnxruntime-web."""
    return cache_folder() / "web"


def sysroot(version: str) -> Sysroot | None:
    """Return the sysroot for a version of ONNX Runtime, or None if it is not installed."""
    folder = arm_folder(version)
    try:
        facts = json.loads((folder / _SYSROOT).read_text(encoding="utf-8"))
        return Sysroot(folder, facts["python"], facts["onnxruntime"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def web_version() -> str:
    """Return the version of onnxruntime-web; empty if it is not installed."""
    return _version(web_folder() / "node_modules" / "onnxruntime-web" / "package.json")


def _version(facts: Path) -> str:
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
