"""Jobs: models and batches written to files, run on a processor, and outputs read back; with the
commands that start a job on each family of processors."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.session import ONNXRUNTIME, RUNTIME
from qtool.core.errors import EmulationError
from qtool.core.remedies import Argument, Setup
from qtool.core.types import Array
from qtool.plugins.emulators.available import (
    INSTALL_PAGE,
    QEMU_ARM,
    QEMU_X86,
    Sysroot,
    sysroot,
    web_folder,
    web_version,
)
from qtool.plugins.emulators.cpus import Cpu, Family, cpuinfo
from qtool.plugins.emulators.processes import TimeLimitError, run_command

_SCRIPTS = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """One model on all batches.

    Attributes:
        model: the ONNX file.
        inputs: folder with `B-I.npy`: input I of batch B.
        outputs: existing folder for outputs in the same form.
        batches: number of batches.
        external: name of a weight file in the model -> its path.
    """

    model: Path
    inputs: Path
    outputs: Path
    batches: int
    external: Mapping[str, Path] = field(default_factory=dict)


def run_jobs(cpu: Cpu | None, jobs: Sequence[Job], folder: Path, timeout: float) -> str:
    """Run jobs on a processor in one process, and return the runtime with its version.

    Args:
        cpu: the processor; None for this machine.
        jobs: the jobs.
        folder: a new private folder for scripts and the job file.
        timeout: seconds for all jobs together.

    Raises:
        EmulationError: the process fails or takes longer.
    """
    name = "this machine" if cpu is None else cpu.name
    folder.mkdir()
    job = folder / "job.json"
    job.write_text(json.dumps({"runs": [_as_json(j) for j in jobs]}), encoding="utf-8")
    how = launch(cpu, folder)
    words = (*how.command, str(job), *how.rest)
    try:
        run_command(words, name, timeout, environment=how.environment)
    except TimeLimitError as error:
        raise EmulationError(
            str(error),
            Argument("--samples", text="give fewer samples"),
            Argument("--timeout", text="give a longer time limit with {}"),
        ) from error
    return how.runtime


def _as_json(job: Job) -> dict[str, object]:
    return {
        "model": str(job.model),
        "inputs": str(job.inputs),
        "outputs": str(job.outputs),
        "batches": job.batches,
        "external": [[name, str(path)] for name, path in job.external.items()],
    }


def external_files(model: Path) -> dict[str, Path]:
    """Return the weight files of a model by their names in the model.

    Raises:
        FileError: not an ONNX file.
    """
    named = model_files(model)[1:]
    return {str(f.relative_to(model.parent)): f.resolve() for f in named}


def write_array(folder: Path, batch: int, index: int, array: Array) -> None:
    """Write one array of a batch."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    np.save(_file(folder, batch, index), plain, allow_pickle=False)


def read_array(folder: Path, batch: int, index: int) -> Array:
    """Read one array of a batch.

    Raises:
        EmulationError: it is missing or damaged.
    """
    try:
        array: Array = np.load(_file(folder, batch, index), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise EmulationError(f"output {index} of batch {batch} is not readable: {error}") from error
    return array


def link_array(source: Path, target: Path, batch: int, index: int) -> None:
    """Link an array of a batch from one folder into another."""
    _file(target, batch, index).symlink_to(_file(source, batch, index).resolve())


def _file(folder: Path, batch: int, index: int) -> Path:
    return folder / f"{batch}-{index}.npy"


# --- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The command that runs a job on a processor.

    Attributes:
        command: program and arguments before the job file.
        environment: environment of the process.
        runtime: the runtime with its version.
        rest: arguments after the job file.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    runtime: str
    rest: tuple[str, ...] = ()


def launch(cpu: Cpu | None, folder: Path) -> Launch:
    """Return the command that runs jobs on a processor.

    Args:
        cpu: the processor; None for this machine.
        folder: a private folder for a copy of the script and links to the sysroot.

    Raises:
        EmulationError: an emulator is not installed.
    """
    return _python(folder) if cpu is None else _LAUNCHES[cpu.family](cpu, folder)


def _python(folder: Path) -> Launch:
    """Run this Python with its packages.

    The script is copied, so that its folder, which Python puts first in its path, contains no other
    module.
    """
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.py", folder))
    path = os.pathsep.join(p for p in sys.path if p)
    return Launch((sys.executable, str(script)), {**_environment(), "PYTHONPATH": path}, RUNTIME)


def _x86(cpu: Cpu, folder: Path) -> Launch:
    native = _python(folder)
    command = (_program(QEMU_X86), "-cpu", cpu.model, *native.command)
    # OpenBLAS, which numpy loads, uses AVX kernels on an emulated Nehalem and crashes
    environment = {**native.environment, "OPENBLAS_CORETYPE": cpu.model}
    return Launch(command, environment, native.runtime)


def _arm(cpu: Cpu, folder: Path) -> Launch:
    version = ONNXRUNTIME.version() or ""
    installed = sysroot(version)
    if installed is None:
        raise EmulationError(
            f"{cpu.name}: the aarch64 packages are missing", Setup("install them again")
        )
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.py", folder))
    root = _overlay(installed, cpu, folder / "root")
    libraries = [*root.glob("lib/aarch64-linux-gnu"), *root.glob("usr/lib/aarch64-linux-gnu")]
    guest = f"LD_LIBRARY_PATH={os.pathsep.join(map(str, libraries))}"
    emulator = (_program(QEMU_ARM), "-cpu", cpu.model, "-L", str(root), "-E", guest)
    command = (*emulator, str(root / "usr/bin" / f"python{installed.python}"), str(script))
    paths = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(installed.folder / "site")}
    return Launch(command, _environment() | paths, f"onnxruntime {installed.onnxruntime}")


def _web(cpu: Cpu, folder: Path) -> Launch:
    script = Path(shutil.copy(_SCRIPTS / "run_onnx.mjs", folder))
    runtime = f"onnxruntime-web {web_version()}"
    return Launch(
        (_program("node"), str(script)), dict(os.environ), runtime, (str(web_folder().resolve()),)
    )


_LAUNCHES: Mapping[Family, Callable[[Cpu, Path], Launch]] = {
    Family.X86: _x86,
    Family.ARM: _arm,
    Family.WEB: _web,
}


def _overlay(installed: Sysroot, cpu: Cpu, root: Path) -> Path:
    """Link the sysroot into `root` and add the /proc/cpuinfo of the processor.

    qemu's `-L` looks up every absolute path in this folder first.
    """
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(cpuinfo(cpu), encoding="utf-8")
    base = installed.folder.resolve() / "root"
    for part in base.iterdir():
        if part.name != "proc":
            (root / part.name).symlink_to(part)
    if not (root / "lib").exists():  # a distribution whose /lib is a link to /usr/lib
        (root / "lib").symlink_to(base / "usr" / "lib")
    return root


def _environment() -> dict[str, str]:
    """Return the environment of this process without variables that change how Python starts."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**variables, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def _program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise EmulationError(f"{program} is not installed; {INSTALL_PAGE} says how to install it")
    return path
