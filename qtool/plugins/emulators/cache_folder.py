"""The cache folder for emulators, in which INSTALL_PAGE puts them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_PAGE = "docs/emulators.md"
_SYSROOT, _WEBGPU_FACTS = "sysroot.json", "webgpu.json"


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


def webgpu_folder() -> Path:
    """Return the folder for onnxruntime-webgpu (`site`) and its Vulkan driver (`lib`).

    Its wheel is compiled for one version of Python, so each version has its own folder.
    """
    return cache_folder() / f"webgpu-{sys.implementation.cache_tag}"


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


def webgpu_version() -> str:
    """Return the version of onnxruntime-webgpu; empty if it is not installed."""
    return _version(webgpu_folder() / _WEBGPU_FACTS)


def _version(facts: Path) -> str:
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
