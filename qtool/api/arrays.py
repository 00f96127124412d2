"""The Python API where torch is not installed: files on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from qtool.backends.open_files import open_readable
from qtool.core.numpy_files import SUFFIXES, NumpyFiles, has_arrays
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import accepts_paths
from qtool.core.torch_package import torch_error
from qtool.core.types import Progress
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.file_evaluation import evaluate_arrays


def load_data(
    source: str | Path,
    batch_size: int = 32,
    *,
    labels: str | None = None,
    samples: int | None = None,
    **others: Any,
) -> NumpyFiles:
    """Load batches of arrays from a .npy or .npz file, or a folder of them.

    Args:
        source: the file or folder.
        batch_size: samples per batch.
        labels: name of the array with the labels, which is no input.
        samples: number of evenly spaced samples to use; by default all.
        others: other arguments of `qtool.load_data` with torch.

    Raises:
        DataError: there is no such file, or no array in it.
        InstallError: other data, or one of the other arguments.
    """
    _refuse(others, "load_data")
    path = Path(source)
    if path.suffix not in SUFFIXES and not has_arrays(path):
        raise torch_error(
            f"{source} is neither a .npy or .npz file nor a folder of them; other data"
        )
    files = NumpyFiles(path, batch_size, () if labels is None else (labels,), samples)
    files.files()
    return files


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

    It is not checked that the float file has the weights that the file was made from.

    Args:
        file: the quantized file.
        model: the float file.
        data: batches of arrays, in the order of `labels`: one array, a dict by input name, or a
            tuple in the order of the inputs.
        labels: [samples] class numbers; the first output then holds [samples, classes] scores.
        threads, runtime, seconds, progress: see `qtool.evaluate` with torch.
        others: its other arguments; `other_model` has nothing to allow.

    Raises:
        FileError: no model file.
        DataError: no data, or data or labels that do not fit.
        InstallError: one of the other arguments.
        VerificationError: a file does not run.
    """
    _refuse(others, "evaluate")
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


def _refuse(others: Mapping[str, Any], call: str) -> None:
    """Refuse arguments in use that need torch."""
    used = (name for name, value in others.items() if value and name != "other_model")
    if (other := next(used, None)) is not None:
        raise torch_error(f"{other} of {call}")
