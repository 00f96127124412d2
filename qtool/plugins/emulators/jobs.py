"""Jobs: models and batches in files, run on a processor, and outputs read back."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qtool.backends.onnxruntime.session import ONNXRUNTIME, RUNTIME, OnnxSession
from qtool.backends.session import Session
from qtool.core.errors import EmulationError, VerificationError
from qtool.core.remedies import Argument, Setup
from qtool.core.types import Array
from qtool.plugins.emulators.available import QEMU_ARM, QEMU_X86, Sysroot, sysroot, web_version
from qtool.plugins.emulators.cpus import Cpu, Family, cpuinfo
from qtool.plugins.emulators.processes import TimeLimitError, run_command
from qtool.plugins.emulators.web.session import PROCESS, WebSession

_SCRIPT = Path(__file__).with_name("run_onnx.py")


@dataclass(frozen=True)
class Job:
    """One model on all batches.

    Attributes:
        model: the ONNX file.
        inputs: folder with `B-I.npy`: input I of batch B.
        outputs: existing folder for outputs in the same form.
        batches: number of batches.
    """

    model: Path
    inputs: Path
    outputs: Path
    batches: int


def run_jobs(cpu: Cpu | None, jobs: Sequence[Job], folder: Path, timeout: float) -> str:
    """Run jobs on a processor, on one thread, and return the runtime with its version.

    Args:
        cpu: the processor; None for this machine, without a time limit.
        jobs: the jobs.
        folder: a new private folder for scripts and the job file.
        timeout: seconds for all jobs together.

    Raises:
        EmulationError: a run on another processor fails or takes longer.
        VerificationError: this machine's runtime refuses a model.
    """
    if cpu is None:
        _run_sessions(lambda path: OnnxSession(path, threads=1), jobs)
        return RUNTIME
    try:
        run = _run_in_node if cpu.family is Family.WEB else _run_in_qemu
        return run(cpu, jobs, folder, timeout)
    except TimeLimitError as error:
        raise EmulationError(
            str(error),
            Argument("--samples", text="give fewer samples"),
            Argument("--timeout", text="give a longer time limit with {}"),
        ) from error


def _run_sessions(opened: Callable[[Path], Session], jobs: Sequence[Job]) -> None:
    for job in jobs:
        session = opened(job.model)
        for batch in range(job.batches):
            arrays = [read_array(job.inputs, batch, i) for i in range(len(session.inputs))]
            for i, array in enumerate(session.run(arrays)):
                write_array(job.outputs, batch, i, array)


def _run_in_node(cpu: Cpu, jobs: Sequence[Job], folder: Path, timeout: float) -> str:
    PROCESS.start()
    timer = threading.Timer(timeout, PROCESS.kill)
    timer.start()
    try:
        _run_sessions(WebSession, jobs)
    except VerificationError as error:
        if timer.finished.is_set():
            raise TimeLimitError(f"{cpu.name} was stopped after {timeout:.0f} s") from error
        raise EmulationError(f"{cpu.name} fails: {error.problem}", *error.remedies) from error
    finally:
        timer.cancel()
    return f"onnxruntime-web {web_version()}"


def _run_in_qemu(cpu: Cpu, jobs: Sequence[Job], folder: Path, timeout: float) -> str:
    folder.mkdir()
    file = folder / "job.json"
    runs = [vars(job) for job in jobs]
    file.write_text(json.dumps({"runs": runs}, default=str), encoding="utf-8")
    how = launch(cpu, folder)
    run_command((*how.command, str(file)), cpu.name, timeout, how.environment)
    return how.runtime


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


# --- commands of qemu ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The command that runs a job on a processor.

    Attributes:
        command: program and arguments before the job file.
        environment: environment of the process.
        runtime: the runtime with its version.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    runtime: str


def launch(cpu: Cpu, folder: Path) -> Launch:
    """Return the command that runs jobs on a processor of qemu.

    Args:
        cpu: the processor.
        folder: a private folder for a copy of the script and links to the sysroot.

    Raises:
        EmulationError: packages are missing.
    """
    # the folder of the script, which Python puts first in its path, contains no other module
    script = str(shutil.copy(_SCRIPT, folder))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment = {**inherited, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    if cpu.family is Family.X86:
        path = os.pathsep.join(p for p in sys.path if p)
        # OpenBLAS, which numpy loads, uses AVX kernels on an emulated Nehalem and crashes
        environment |= {"PYTHONPATH": path, "OPENBLAS_CORETYPE": cpu.model}
        return Launch((QEMU_X86, "-cpu", cpu.model, sys.executable, script), environment, RUNTIME)
    installed = sysroot(ONNXRUNTIME.version() or "")
    if installed is None:
        raise EmulationError(
            f"{cpu.name}: the aarch64 packages are missing", Setup("install them again")
        )
    root = _overlay(installed, cpu, folder / "root")
    libraries = [*root.glob("lib/aarch64-linux-gnu"), *root.glob("usr/lib/aarch64-linux-gnu")]
    guest = f"LD_LIBRARY_PATH={os.pathsep.join(map(str, libraries))}"
    emulator = (QEMU_ARM, "-cpu", cpu.model, "-L", str(root), "-E", guest)
    python = str(root / "usr/bin" / f"python{installed.python}")
    environment |= {
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": str(installed.folder / "site"),
    }
    return Launch((*emulator, python, script), environment, f"onnxruntime {installed.onnxruntime}")


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
