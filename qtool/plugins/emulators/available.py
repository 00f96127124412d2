"""What processors that can be emulated lack on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.errors import EmulationError
from qtool.plugins.emulators.cpus import CPUS, Cpu, Family
from qtool.plugins.emulators.processes import run_command

QEMU_X86, QEMU_ARM = "qemu-x86_64", "qemu-aarch64"
_MIN_VERSION = (7, 2)  # the first version of QEMU with AVX2
_SECONDS = 60.0
INSTALL_PAGE = "docs/emulators.md"
_HOW = f"{INSTALL_PAGE} says how to install what is missing"
_SYSROOT = "sysroot.json"


@dataclass(frozen=True)
class Missing:
    """Processors that cannot be emulated.

    Attributes:
        cpus: their names.
        reason: what is missing for each, and how to install it; empty without any.
    """

    cpus: tuple[str, ...] = ()
    reason: str = ""


def problems() -> dict[str, str]:
    """Return processor -> what it lacks here; "" where `verify_on` can run files on it."""
    version = ONNXRUNTIME.version() or ""
    machine, other = machine_type(), ""
    if machine != "x86_64":
        other = f"{QEMU_X86} runs this machine's own packages, which are for {machine}, not x86_64"
    has_arm = sysroot(version) is not None
    families = {
        Family.X86: (other or _qemu(QEMU_X86),),
        Family.ARM: (
            _qemu(QEMU_ARM),
            "" if has_arm else f"aarch64 packages of onnxruntime {version} are not installed",
        ),
        Family.WEB: (
            "" if shutil.which("node") else "node is not installed",
            "" if web_version() else "onnxruntime-web is not installed",
        ),
    }
    lacks = {family: ", ".join(filter(None, each)) for family, each in families.items()}
    return {cpu.name: lacks[cpu.family] for cpu in CPUS.values()}


def check_available(cpus: Iterable[Cpu], some: bool = False) -> Missing:
    """Check that files can be run on these processors; return those that cannot be emulated.

    Args:
        cpus: the processors.
        some: one that can be emulated is enough.

    Raises:
        EmulationError: some cannot be emulated; with how to install what is missing.
    """
    checked, state = tuple(cpus), problems()
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


def _qemu(name: str) -> str:
    """Return why a program of QEMU cannot be used; "" if it can."""
    path = shutil.which(name)
    version = "" if path is None else _version_of(path)
    if not version:
        return f"{name} is not installed"
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < _MIN_VERSION:
        least = ".".join(map(str, _MIN_VERSION))
        return f"{name} is version {version}; {least} or newer is needed"
    return ""


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
