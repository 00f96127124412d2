"""Jobs: models and batches written to files, run on a processor, and outputs read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.emulation.cpus import Cpu
from qtool.backends.onnxruntime.emulation.launch import launch
from qtool.backends.onnxruntime.emulation.processes import TimeLimitError, run_command
from qtool.core.argument_names import argument
from qtool.core.errors import EmulationError
from qtool.core.types import Array


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
        advice = f"give fewer samples, or a longer time limit with {argument('--timeout')}"
        raise EmulationError(f"{error}; {advice}") from error
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
