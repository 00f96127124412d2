"""Usual names of labels, and the check that the array named as the labels is no input."""

from __future__ import annotations

from collections.abc import Collection

from qtool.core.errors import DataError
from qtool.core.numpy_files import NumpyFiles, read_arrays
from qtool.core.remedies import Argument

LABELS = frozenset(
    {
        "class",
        "end_positions",
        "label",
        "labels",
        "next_sentence_label",
        "start_positions",
        "target",
        "targets",
        "y",
    }
)
"""Usual keys of labels in batches that are dicts."""


def check_label_array(files: NumpyFiles, labels: str, inputs: Collection[str] = ()) -> None:
    """Check that the array that has the labels is not the one that the model takes.

    It is where the model has an input of its name, and where only arrays with usual names of labels
    and of fewer dimensions would be inputs.

    Args:
        files: the data.
        labels: name of the array with the labels.
        inputs: names of the model's inputs; empty: not known.

    Raises:
        DataError: it is; the remedy names the other array where there is one alone.
    """
    for file in files.files()[:1]:
        arrays = read_arrays(file)
        others = {name: array for name, array in arrays.items() if name != labels}
        if labels not in arrays or labels in LABELS:
            continue
        dims = arrays[labels].ndim
        left = bool(others) and all(n in LABELS and a.ndim < dims for n, a in others.items())
        if left or labels in inputs:
            names = list(others)
            name = names[0] if len(names) == 1 else None
            raise DataError(
                f"{file}: labels are taken from '{labels}', which is an input, and inputs from "
                f"{', '.join(others)}",
                Argument("--labels", name, "name the array of labels with {}"),
            )
