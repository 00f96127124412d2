"""How a job of models and inputs is started on each family of processors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.onnxruntime.session import ONNXRUNTIME, RUNTIME
from qtool.core.errors import EmulationError
from qtool.verification.emulation.available import QEMU_ARM, QEMU_X86
from qtool.verification.emulation.cache_folder import Sysroot, sysroot, web_folder, web_version
from qtool.verification.emulation.cpus import Cpu, Family, cpuinfo

NATIVE = "this machine"
_SCRIPTS = Path(__file__).parent


@dataclass(frozen=True)
class Launch:
    """What is typed to run a job on a processor.

    Attributes:
        command: program and arguments; the job file follows, and `rest` after that.
        rest: further arguments.
        environment: of the process.
        runtime: what runs the models there, with its version.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    runtime: str
    rest: tuple[str, ...] = ()


def launch(cpu: Cpu | None, folder: Path) -> Launch:
    """Return how to run jobs on a processor; None stands for this machine itself.

    Args:
        cpu: a row of the table.
        folder: a private folder, in which a copy of the script and links to the sysroot are made.

    Raises:
        EmulationError: what it needs is not installed.
    """
    return _python(folder) if cpu is None else _LAUNCHES[cpu.family](cpu, folder)


def _python(folder: Path) -> Launch:
    """This very Python and its packages. The script is copied, so that its folder, which Python
    puts in front of its path, holds nothing else."""
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.py", folder))
    path = os.pathsep.join(p for p in sys.path if p)
    return Launch((sys.executable, str(script)), {**_environment(), "PYTHONPATH": path}, RUNTIME)


def _x86(cpu: Cpu, folder: Path) -> Launch:
    native = _python(folder)
    command = (_found(QEMU_X86), "-cpu", cpu.model, *native.command)
    # OpenBLAS, which numpy loads, takes kernels with AVX on an emulated Nehalem and crashes there
    environment = {**native.environment, "OPENBLAS_CORETYPE": cpu.model}
    return Launch(command, environment, native.runtime)


def _arm(cpu: Cpu, folder: Path) -> Launch:
    version = ONNXRUNTIME.version() or ""
    found = sysroot(version)
    if found is None:
        raise EmulationError(f"{cpu.name}: the aarch64 packages are gone; install them again")
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.py", folder))
    root = _overlay(found, cpu, folder / "root")
    libraries = [*root.glob("lib/aarch64-linux-gnu"), *root.glob("usr/lib/aarch64-linux-gnu")]
    guest = f"LD_LIBRARY_PATH={os.pathsep.join(map(str, libraries))}"
    emulator = (_found(QEMU_ARM), "-cpu", cpu.model, "-L", str(root), "-E", guest)
    command = (*emulator, str(root / "usr/bin" / f"python{found.python}"), str(script))
    own = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(found.folder / "site")}
    return Launch(command, _environment() | own, f"onnxruntime {found.onnxruntime}")


def _web(cpu: Cpu, folder: Path) -> Launch:
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.mjs", folder))
    runtime = f"onnxruntime-web {web_version()}"
    return Launch(
        (_found("node"), str(script)), dict(os.environ), runtime, (str(web_folder().resolve()),)
    )


_LAUNCHES: Mapping[Family, Callable[[Cpu, Path], Launch]] = {
    Family.X86: _x86,
    Family.ARM: _arm,
    Family.WEB: _web,
}


def _overlay(found: Sysroot, cpu: Cpu, root: Path) -> Path:
    """The sysroot by links, beside a /proc/cpuinfo of this processor. (qemu's `-L` looks every
    absolute path up there first.)"""
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(cpuinfo(cpu), encoding="utf-8")
    base = found.folder.resolve() / "root"
    for part in base.iterdir():
        if part.name != "proc":
            (root / part.name).symlink_to(part)
    if not (root / "lib").exists():  # a distribution whose /lib is a link to /usr/lib
        (root / "lib").symlink_to(base / "usr" / "lib")
    return root


def _environment() -> dict[str, str]:
    """This process's, without what would change how Python starts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise EmulationError(f"{program} is not installed; `qtool emulators install` installs it")
    return path
