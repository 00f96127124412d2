"""Installed emulators, and which are missing."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.errors import EmulationError
from qtool.core.number_texts import part, table
from qtool.core.records import to_json
from qtool.core.summary import Summary
from qtool.plugins.emulators.cpus import CPUS, Cpu, Family
from qtool.plugins.emulators.processes import run_command

QEMU_X86, QEMU_ARM = "qemu-x86_64", "qemu-aarch64"
_MIN_VERSION = (7, 2)  # the first version of QEMU with AVX2
_SECONDS = 60.0
INSTALL_PAGE = "docs/emulators.md"
_HOW = f"{INSTALL_PAGE} says how to install what is missing"
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
    """

    name: str
    family: Family
    version: str
    where: str
    problem: str = ""


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
        return Summary(title, text, (), () if count == len(self.cpus) else (_HOW,))

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
    """Return which emulators are installed and on which processors `verify_on` can run files."""
    version = ONNXRUNTIME.version() or ""
    root, arm = sysroot(version), arm_folder(version)
    node = shutil.which("node")
    other = machine_type() != "x86_64"
    here = f"runs this machine's own packages, which are for {machine_type()}, not x86_64"
    packages = "" if root is None else f"{root.onnxruntime}, Python {root.python}"
    parts = (
        _qemu(QEMU_X86, Family.X86, here if other else ""),
        _qemu(QEMU_ARM, Family.ARM),
        _part(f"aarch64 packages of onnxruntime {version}", Family.ARM, packages, arm),
        _part("node", Family.WEB, _version_of(node) if node else "", node or ""),
        _part("onnxruntime-web", Family.WEB, web_version(), web_folder()),
    )
    problems = {
        cpu.name: [f"{p.name} {p.problem}" for p in parts if p.family is cpu.family and p.problem]
        for cpu in CPUS.values()
    }
    return Emulators(parts, {name: ", ".join(each) for name, each in problems.items()})


def check_available(cpus: Iterable[Cpu], some: bool = False) -> Missing:
    """Check that files can be run on these processors; return those that cannot be emulated.

    Args:
        cpus: the processors.
        some: one that can be emulated is enough.

    Raises:
        EmulationError: some cannot be emulated; with how to install what is missing.
    """
    checked, state = tuple(cpus), emulators().cpus
    reasons: dict[str, list[str]] = {}
    for cpu in checked:
        if why := state[cpu.name]:
            reasons.setdefault(why, []).append(cpu.name)
    if not reasons:
        return Missing()
    names = tuple(name for each in reasons.values() for name in each)
    why = "; ".join(f"{', '.join(each)} ({why})" for why, each in reasons.items())
    missing = Missing(names, f"{why}; {_HOW}")
    if len(names) == len(checked) or not some:
        raise EmulationError(f"cannot emulate {missing.reason}")
    return missing


def machine_type() -> str:
    """Return this machine's processor architecture: x86_64, aarch64 or another."""
    import platform

    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _part(name: str, family: Family, version: str, where: object) -> Emulator:
    verb = "are" if family is Family.ARM else "is"
    return Emulator(name, family, version, str(where), "" if version else f"{verb} not installed")


def _qemu(name: str, family: Family, problem: str = "") -> Emulator:
    path = shutil.which(name)
    version = "" if path is None else _version_of(path)
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not problem and not version:
        problem = "is not installed"
    elif not problem and numbers < _MIN_VERSION:
        problem = f"is version {version}; {'.'.join(map(str, _MIN_VERSION))} or newer is needed"
    return Emulator(name, family, version, path or "", problem)


@lru_cache
def _version_of(program: str) -> str:
    """Return the version that a program prints; empty if it prints none."""
    try:
        version = re.search(r"\d+(\.\d+)+", run_command([program, "--version"], program, _SECONDS))
    except EmulationError:
        return ""
    return version[0] if version else ""


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
    facts = web_folder() / "node_modules" / "onnxruntime-web" / "package.json"
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
