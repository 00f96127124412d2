"""The Python API for a file alone: `verify`. It needs no torch for files with a self-test."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from qtool.backends.formats import check_quantized, open_file
from qtool.backends.onnxruntime.onnx_file import OnnxFile
from qtool.backends.onnxruntime.two_sessions import compare_sessions
from qtool.core.frame_columns import in_column_order
from qtool.core.path_arguments import model_file
from qtool.core.progress import no_progress
from qtool.core.torch_package import INSTALL, TORCH, has_torch, torch_error
from qtool.core.types import Progress
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.labelled_data import calibrated_columns
from qtool.evaluation.model_inputs import random_inputs
from qtool.verification import FileCheck


def verify(
    file: str | Path,
    data: Iterable[Any] | None = None,
    *,
    samples: int = 256,
    batch_size: int = 32,
    progress: Progress = no_progress,
) -> FileCheck:
    """Run the self-test of an int8 file, then compare the integer engine with ONNX Runtime.

    Args:
        file: a QDQ model of any tool, a QOperator model written by qtool, or a TFLite file.
        data: batches by input name or in the order of the inputs; by default random inputs over
            the ranges that the file quantizes.
        samples, batch_size: number of random samples, and of the samples of a batch.
        progress: wraps the iterable of batches, for a progress bar.

    Returns:
        The bit-by-bit comparison. `self_test` is the result of the test stored in qtool's files:
        whether the file is unchanged and computes the planned codes. If a file has such a test but
        no integer program, `samples` is 0 and `not_compared` is the reason.

    The engine computes with tensors. Where torch is not installed, the self-test runs; an ONNX file
    without one, or with data, runs as written and optimised, and `sessions` compares the two.

    Raises:
        DataError: the data does not fit, or random inputs of a type cannot be generated.
        FileError: not an ONNX file, or one without quantized operators.
        InstallError: torch is not installed, and a TFLite file has no self-test, or there is data.
        KernelError: the engine cannot represent a node.
        VerificationError: ONNX Runtime does not load the file.

    Example:
        >>> assert qtool.verify("model.int8.onnx").passed
    """
    file = model_file(file)
    check_quantized(file)
    if not has_torch():
        return _without_engine(file, data, samples, batch_size, progress)
    opened = open_file(file)  # before a session: says why it is malformed
    if data is not None:
        for columns in calibrated_columns(file):
            data = in_column_order(data, columns)
        return opened.verify(Feeder(file, data), progress)
    check = opened.verify(random_inputs(file, samples, batch_size), progress)
    known = opened.known_sizes() if check.not_compared else {}
    if not known:
        return check
    inputs = random_inputs(file, samples, batch_size, known=known)  # it does not take any sizes
    return opened.verify(inputs, progress)


def _without_engine(
    file: Path, data: Iterable[Any] | None, samples: int, batch_size: int, progress: Progress
) -> FileCheck:
    """Return the result of the self-test, and of two sessions of a file without one, or on data."""
    opened, sessions = open_file(file), None
    check = opened.check_self_test()
    if data is not None or not (check.present or check.unmodified is False):
        if not isinstance(opened, OnnxFile):
            raise torch_error(f"{file}: a comparison with the integer engine")
        random = random_inputs(file, samples, batch_size), random_inputs(file, 1, 1, seed=1)
        batches = chain(*random) if data is None else Feeder(file, data)
        sessions = compare_sessions(file, progress(batches))
    why = f"it needs {TORCH}; run {INSTALL}"
    return FileCheck(0, 0, 0, 0.0, None, 0, self_test=check, not_compared=why, sessions=sessions)
