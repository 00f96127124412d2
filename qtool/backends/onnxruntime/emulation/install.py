"""Installation of emulators with apt-get, pip and npm, as they are configured on this system.

Files private to qtool are in a cache folder, which is replaced atomically.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qtool.backends.onnxruntime.emulation.available import QEMU_ARM, QEMU_X86, Emulator, emulators
from qtool.backends.onnxruntime.emulation.cache_folder import (
    SYSROOT,
    WEBGPU_FACTS,
    arm_folder,
    sysroot,
    web_folder,
    web_version,
    webgpu_folder,
    webgpu_version,
)
from qtool.backends.onnxruntime.emulation.cpus import Family
from qtool.backends.onnxruntime.emulation.jobs import DRIVER_FILE, SWIFTSHADER
from qtool.backends.onnxruntime.emulation.processes import run_command
from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.atomic import sibling_folder
from qtool.core.errors import EmulationError, FileError
from qtool.core.progress import track_task
from qtool.core.remedies import OtherFile, Setup

_PACKAGE = "qemu-user"
_SECONDS = 1800.0
_PATIENCE = 60.0  # seconds for the system's package manager to end cleanly
_LIBRARIES = ("libstdc++6", "libgomp1")  # needed by the wheels, besides Python
_GLIBC = ("2_28", "2_27", "2_26", "2_17")  # manylinux tags that count as compatible
_BROWSERS = ("/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome")
_LOADER, _WITHOUT_SUBGROUPS = "libvulkan.so.1", "libwithout_subgroups.so"
_PLATFORMS = (*(f"manylinux_{v}_aarch64" for v in _GLIBC), "manylinux2014_aarch64")


def install_emulators(families: Iterable[Family]) -> tuple[str, ...]:
    """Install missing emulators for some families of processors.

    Args:
        families: x86 needs qemu-user of the system; ARM also a sysroot and wheels in the cache
            folder; WEB onnxruntime-web in the cache folder; WEBGPU onnxruntime-webgpu, and
            SwiftShader out of Chromium or Chrome.

    Returns:
        A sentence for each part.

    Raises:
        EmulationError: something cannot be installed; with the command to type instead.
        FileError: the cache folder cannot be written.
    """
    selected = set(families)
    steps = [step for users, step in _STEPS if users & selected]
    try:
        return tuple(step() for step in steps)
    except OSError as error:
        raise FileError(
            f"cannot write {error.filename or arm_folder('').parent}: {error.strerror or error}",
            OtherFile("set QTOOL_CACHE to another folder"),
        ) from error


def _qemu() -> str:
    state = emulators()
    if all(not p.problem for p in state.parts if p.name in (QEMU_X86, QEMU_ARM)):
        return f"{_PACKAGE} is installed"
    if not _may_install():
        raise EmulationError(
            f"{_PACKAGE} is a system package",
            Setup(
                f"type `sudo apt-get install --no-install-recommends {_PACKAGE}` (Debian, Ubuntu)"
            ),
            Setup(
                f"install the package that holds {QEMU_X86} and {QEMU_ARM}, version 7.2 or newer"
            ),
        )
    _install_packages(_PACKAGE)
    return f"{_PACKAGE} was installed"


def _sysroot() -> str:
    version = ONNXRUNTIME.version() or ""
    if sysroot(version) is not None:
        return f"the aarch64 packages of onnxruntime {version} are in {arm_folder(version)}"
    _need("apt-get", "the aarch64 sysroot is made of packages of Debian or Ubuntu")
    _need("dpkg", "the aarch64 sysroot is made of packages of Debian or Ubuntu")
    with _published(arm_folder(version)) as folder:
        with track_task("unpacking aarch64 packages"):
            python = _unpack_packages(folder)
        with track_task("unpacking aarch64 wheels"):
            _unpack_wheels(folder / "site", python, version)
        facts = {"python": python, "onnxruntime": version}
        (folder / SYSROOT).write_text(json.dumps(facts), encoding="utf-8")
    return f"aarch64 packages of onnxruntime {version} were put into {arm_folder(version)}"


def _web() -> str:
    if web_version():
        return f"onnxruntime-web {web_version()} is in {web_folder()}"
    if (shutil.which("node") is None or shutil.which("npm") is None) and _may_install():
        _install_packages("nodejs", "npm")
    _need("node", "install Node.js (`sudo apt-get install nodejs npm`)")
    npm = _need("npm", "install npm (`sudo apt-get install npm`)")
    with _published(web_folder()) as folder, track_task("installing onnxruntime-web"):
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
        words = (npm, "install", *quiet, "--prefix", str(folder), "onnxruntime-web")
        run_command(words, "npm install onnxruntime-web", _SECONDS)
    return f"onnxruntime-web {web_version()} was put into {web_folder()}"


def _webgpu() -> str:
    if version := webgpu_version():
        return f"onnxruntime-webgpu {version} and SwiftShader are in {webgpu_folder()}"
    if why := next((p.problem for p in emulators().parts if _is_impossible(p)), ""):
        raise EmulationError(f"onnxruntime-webgpu {why}")
    compiler = _need("cc", "install a C compiler (`sudo apt-get install gcc libc6-dev`)")
    with _published(webgpu_folder()) as folder, track_task("installing onnxruntime-webgpu"):
        (folder / "lib").mkdir()
        _copy_driver(folder)
        source = Path(__file__).with_name("without_subgroups.c")
        library = folder / "lib" / _WITHOUT_SUBGROUPS
        words = (compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
        run_command(words, f"{compiler} {source.name}", _SECONDS)
        driver = {"library_path": f"./{_WITHOUT_SUBGROUPS}", "api_version": "1.1.0"}
        facts = {"file_format_version": "1.0.0", "ICD": driver}
        (folder / "lib" / DRIVER_FILE).write_text(json.dumps(facts), encoding="utf-8")
        version = _install_provider(folder / "site")
        (folder / WEBGPU_FACTS).write_text(json.dumps({"version": version}), encoding="utf-8")
    return f"onnxruntime-webgpu {version} and SwiftShader were put into {webgpu_folder()}"


def _is_impossible(emulator: Emulator) -> bool:
    return emulator.family is Family.WEBGPU and not emulator.installable


def _copy_driver(folder: Path) -> None:
    """Copy SwiftShader and the Vulkan loader of an installed browser, or of Debian's package."""
    places = [Path(place) for place in _BROWSERS]
    if not any((place / SWIFTSHADER).exists() for place in places):
        _need("apt-get", f"install Chromium or Chrome, which contain {SWIFTSHADER}")
        state = folder / "apt"
        state.mkdir()
        fetch = ("sh", "-c", 'cd "$0" && apt-get -qq download chromium && dpkg -x ./*.deb .')
        run_command((*fetch, str(state)), "apt-get download chromium", _SECONDS)
        places = [state / "usr/lib/chromium"]
    place = next((p for p in places if (p / SWIFTSHADER).exists()), None)
    if place is None:
        raise EmulationError(
            f"the package chromium contains no {SWIFTSHADER}",
            Setup("install Chrome, then try again"),
        )
    for name in (SWIFTSHADER, _LOADER):
        shutil.copyfile(place / name, folder / "lib" / name)
    shutil.rmtree(folder / "apt", ignore_errors=True)


def _install_provider(site: Path) -> str:
    """Install onnxruntime-webgpu, and return its version. numpy is that of this environment."""
    words = ("-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--target", str(site))
    title = "pip install onnxruntime-webgpu"
    run_command((sys.executable, *words, "onnxruntime-webgpu"), title, _SECONDS)
    version = re.compile(r"onnxruntime_webgpu-(.+)\.dist-info")
    return next((m[1] for f in site.iterdir() if (m := version.fullmatch(f.name))), "unknown")


_STEPS: tuple[tuple[set[Family], Callable[[], str]], ...] = (
    ({Family.X86, Family.ARM}, _qemu),
    ({Family.ARM}, _sysroot),
    ({Family.WEB}, _web),
    ({Family.WEBGPU}, _webgpu),
)
"""The families that need a step, and the step, in order."""


def _unpack_packages(folder: Path) -> str:
    """Unpack the distribution's Python for aarch64 with all dependencies into `folder`/root.

    apt-get uses a private state in which nothing is installed: it fetches everything, as any user,
    and does not change the system.

    Returns:
        The version of Python.
    """
    state = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (state / part).mkdir(parents=True)
    (state / "status").touch()
    options = _apt_options(state)
    title = "apt-get for aarch64 packages"
    run_command(("apt-get", *options, "-qq", "update"), title, _SECONDS)
    python = _python_version(options)
    names = (f"python{python}-minimal", f"libpython{python}-stdlib", *_LIBRARIES)
    fetch = ("install", "--yes", "--download-only", "--no-install-recommends")
    run_command(("apt-get", *options, "-qq", *fetch, *names), title, _SECONDS)
    for package in sorted((state / "archives").glob("*.deb")):
        run_command(("dpkg", "-x", package, folder / "root"), f"dpkg -x {package.name}", _SECONDS)
    shutil.rmtree(state)
    return python


def _apt_options(state: Path) -> tuple[str, ...]:
    settings: Mapping[str, object] = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Debug::NoLocking": "1",
    }
    return tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))


def _python_version(options: tuple[str, ...]) -> str:
    """Return the version of the distribution's python3, such as "3.11"."""
    words = ("apt-cache", *options, "depends", "python3-minimal")
    try:
        version = re.search(r"python(3\.\d+)-minimal", run_command(words, "apt-cache", _SECONDS))
    except EmulationError:
        version = None
    if version is None:
        raise EmulationError(
            "the package sources of this system have no packages for aarch64 (arm64)",
            Setup(
                "add the distribution's source for arm64 to apt (on Ubuntu on another server "
                "than amd64), then try again"
            ),
        )
    return version[1]


def _unpack_wheels(site: Path, python: str, version: str) -> None:
    platforms = (word for p in _PLATFORMS for word in ("--platform", p))
    words = (
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)),
        *("--implementation", "cp", "--python-version", python, "--only-binary=:all:", *platforms),
        *(f"onnxruntime=={version}", "numpy"),
    )
    title = f"pip install onnxruntime=={version} for aarch64 and Python {python}"
    run_command(words, title, _SECONDS)


def _install_packages(*names: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("install", "--yes", "--no-install-recommends", *names)
    for words in (("update",), install):
        title = f"apt-get {words[0]}"
        with track_task(f"apt-get: {', '.join(names)}"):
            run_command(
                ("apt-get", "-qq", *words), title, _SECONDS, environment=quiet, grace=_PATIENCE
            )


def _may_install() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _need(program: str, why: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise EmulationError(f"{program} is not installed: {why}")
    return path


@contextmanager
def _published(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `target` at the end, or is removed after an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with sibling_folder(target) as folder:
        yield folder
        folder.chmod(0o755)  # temporary folders are private
        if target.exists():  # of another version, or damaged
            shutil.rmtree(target)
        folder.replace(target)
