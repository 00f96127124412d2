"""The Python API for other processors: `verify_on`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import check_quantized, open_model
from qtool.backends.onnxruntime.session import RUNTIME
from qtool.core.errors import FileError
from qtool.core.file_forms import is_tflite
from qtool.core.path_arguments import model_file
from qtool.core.progress import no_progress
from qtool.core.types import Array, Progress
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.machine import this_machine
from qtool.evaluation.model_inputs import random_inputs
from qtool.plugins.emulators.available import check_available
from qtool.plugins.emulators.compare_cpus import TIMEOUT, run_on_cpus
from qtool.plugins.emulators.cpus import names_all, parse_cpus
from qtool.plugins.emulators.result import CpuComparison


def verify_on(
    file: str | Path,
    cpus: str | Iterable[str],
    data: Iterable[Any] | None = None,
    *,
    samples: int = 256,
    batch_size: int = 32,
    timeout: float = TIMEOUT,
    progress: Progress = no_progress,
) -> CpuComparison:
    """Run an int8 file in ONNX Runtime on emulated processors, and compare with this machine.

    Args:
        file: an ONNX file of any tool, QDQ or QOperator.
        cpus: names from `haswell`, `nehalem`, `cortex-a53`, `neoverse-n1`, `neoverse-n2`, `wasm`,
            or `all` for each that can be emulated here; a list, or one text with commas.
        data: batches by input name or in the order of the inputs; by default random inputs over
            the ranges that the file quantizes.
        samples: number of random samples, or of samples of the data to use.
        batch_size: number of samples of a random batch.
        timeout: seconds for one processor.
        progress: wraps the iterable of processors, for a progress bar.

    Raises:
        DataError: the data does not fit, or random inputs of a type cannot be generated.
        EmulationError: a processor is unknown or cannot be emulated here, with the command that
            installs what is missing; or its emulation fails, or takes longer than `timeout`.
        FileError: not an ONNX file, or one without quantized operators.
        VerificationError: ONNX Runtime does not load the file.
    """
    path, chosen = model_file(file), (cpus if isinstance(cpus, str) else tuple(cpus))
    every = parse_cpus(chosen)
    check_quantized(path)
    if is_tflite(path):
        raise FileError(
            f"{path}: ONNX Runtime does not read it, and emulated processors run ONNX Runtime; "
            "`qtool verify` on the device itself checks a .tflite file"
        )
    missing = check_available(every, some=names_all(chosen))
    names = [cpu for cpu in every if cpu.name not in missing.cpus]
    inputs = _inputs(path, data, samples, batch_size)
    results = run_on_cpus(path, names, inputs, timeout)
    completed = tuple(result for _, result in zip(progress(names), results, strict=False))
    number = sum(next((a.shape[0] for a in batch if a.ndim), 1) for batch in inputs)
    return CpuComparison(
        path.name,
        number,
        f"this machine ({this_machine().cpu}, {RUNTIME})",
        completed,
        missing.cpus,
        missing.reason,
    )


def _inputs(
    path: Path, data: Iterable[Any] | None, samples: int, batch_size: int
) -> list[Sequence[Array]]:
    stream = random_inputs(path, samples, batch_size) if data is None else Feeder(path, data)
    return list(_first(path, stream, samples))


def _first(
    file: Path, batches: Iterable[Sequence[Array]], samples: int
) -> Iterator[Sequence[Array]]:
    """Yield batches up to a number of samples; the last is cut if the batch size is dynamic."""
    fixed = any(i.shape and isinstance(i.shape[0], int) for i in open_model(file).inputs)
    left = samples
    for batch in batches:
        if left <= 0:
            return
        count = next((a.shape[0] for a in batch if a.ndim), 1)
        batched = all(a.ndim and a.shape[0] == count for a in batch)
        if count > left and batched and not fixed:
            batch = [np.ascontiguousarray(a[:left]) for a in batch]
        left -= count
        yield batch
