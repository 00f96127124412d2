"""The user's data as inputs of a file, with torch and without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qtool.backends.open_files import open_model
from qtool.core.torch_package import has_torch
from qtool.core.types import Array, Progress
from qtool.evaluation.measure.input_arrays import input_arrays


def file_inputs(
    path: str | Path, data: Iterable[Any], progress: Progress = lambda x: x
) -> Iterator[list[Array]]:
    """Iterate over the user's batches as arrays in the order of the file's inputs.

    Args:
        path: the file.
        data: batches of tensors in any nesting; where torch is not installed, of arrays as
            `input_arrays` takes them.
        progress: wraps the iterable of batches.

    Raises:
        DataError: a batch does not fit the file.
    """
    if not has_torch():
        return input_arrays(open_model(path), progress(data))
    from qtool.evaluation.feeder import data_inputs  # reads tensors

    return data_inputs(path, data, progress)
