"""The Python API where torch is not installed: files on arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from qtool.backends.open_files import open_readable
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import accepts_paths
from qtool.core.torch_package import torch_error
from qtool.core.types import Progress
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.file_evaluation import evaluate_arrays


@accepts_paths("file", "model", models="file model")
def evaluate(
    file: str | Path,
    model: str | Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    progress: Progress = lambda x: x,
    **others: Any,
) -> Evaluation:
    """Compare a quantized file with its float file: accuracy, size, latency, integer share.

    Args:
        file: the quantized file.
        model: the float file.
        data: batches of arrays, in the order of `labels`: one array, a dict by input name, or a
            tuple in the order of the inputs.
        labels: [samples] class numbers; the first output then holds [samples, classes] scores.
        threads, runtime, seconds, progress: see `qtool.evaluate` with torch.
        others: its other arguments.

    Raises:
        FileError: no model file.
        DataError: no data, or data or labels that do not fit.
        InstallError: one of the other arguments.
        VerificationError: a file does not run.
    """
    if other := next((name for name, value in others.items() if value), None):
        raise torch_error(f"{other} of evaluate")
    for path in (file, model):
        open_readable(path)  # says why it is malformed
    return evaluate_arrays(
        Path(model),
        Path(file),
        progress(data),
        labels,
        threads=threads,
        runtime=runtime,
        seconds=seconds,
    )
