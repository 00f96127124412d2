"""The Python API of other processors: `verify_on`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import RUNTIME
from qtool.core.path_arguments import accepts_paths
from qtool.core.types import Array, Progress
from qtool.evaluation.machine import this_machine
from qtool.evaluation.restored_model import read_onnx
from qtool.verification.emulation import (
    TIMEOUT,
    CpuComparison,
    check_available,
    parse_cpus,
    run_on_cpus,
)
from qtool.verification.model_inputs import Feeder, data_inputs, random_inputs


@accepts_paths("file")
def verify_on(
    file: str | Path,
    cpus: str | Iterable[str],
    data: Iterable[Any] | None = None,
    *,
    samples: int = 256,
    batch_size: int = 32,
    timeout: float = TIMEOUT,
    progress: Progress = lambda x: x,
) -> CpuComparison:
    """Run an int8 file in ONNX Runtime on emulated processors, and compare with this machine.

    Args:
        file: an ONNX file of any tool, QDQ or QOperator.
        cpus: names from `haswell`, `nehalem`, `cortex-a53`, `neoverse-n1`, `neoverse-n2`, `wasm`,
            or `all`; a list, or one text with commas.
        data: batches by the file's input names or in their order; by default random inputs over
            the ranges that the file quantizes.
        samples: of the random inputs; of data the first so many.
        batch_size: of the random inputs.
        timeout: seconds for one processor.
        progress: wraps the iterable of processors, for a progress bar.

    Raises:
        DataError: the data does not fit, or inputs of such a type cannot be made up.
        EmulationError: a processor is unknown or cannot be emulated here, with the command that
            installs what is missing; or its emulation fails, or takes longer than `timeout`.
        FileError: not an ONNX file.
        VerificationError: ONNX Runtime does not load the file.
    """
    path, wanted = Path(file), parse_cpus(cpus)
    read_onnx(path)
    check_available(wanted)
    given = random_inputs(path, samples, batch_size) if data is None else data_inputs(path, data)
    taken = list(_first(path, given, samples))
    results = run_on_cpus(path, wanted, taken, timeout)
    found = tuple(result for _, result in zip(progress(wanted), results, strict=False))
    number = sum(next((a.shape[0] for a in batch if a.ndim), 1) for batch in taken)
    return CpuComparison(
        path.name, number, f"this machine ({this_machine().cpu}, {RUNTIME})", found
    )


def _first(
    file: Path, batches: Iterable[Sequence[Array]], samples: int
) -> Iterator[Sequence[Array]]:
    """The first batches with so many samples; the last is cut where the file takes any number."""
    fixed = any(i.shape and isinstance(i.shape[0], int) for i in Feeder(file).inputs)
    left = samples
    for batch in batches:
        if left <= 0:
            return
        count = next((a.shape[0] for a in batch if a.ndim), 1)
        alike = all(a.ndim and a.shape[0] == count for a in batch)
        if count > left and alike and not fixed:
            batch = [np.ascontiguousarray(a[:left]) for a in batch]
        left -= count
        yield batch
