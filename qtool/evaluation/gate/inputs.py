"""Labels and batches of a gate before it runs, and their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from qtool.backends.session import PortInfo
from qtool.core.argument_names import argument
from qtool.core.errors import DataError, OptionError
from qtool.core.log import log_note
from qtool.core.number_texts import quantity
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.metrics.labels import check_no_names
from qtool.metrics.named_metrics import GateMetric


class BatchSizeError(DataError):
    """A batch of another size than the quantized file takes."""


def read_labels(name: str | GateMetric, metric: GateMetric, labels: Any) -> Array | None:
    """Return labels as an array [samples, ...]; None where there are none, or the metric uses none.

    Labels of the metrics of `METRICS` are numbers; a user's function takes any.

    Raises:
        DataError: they are no array, empty, or no finite numbers.
        OptionError: the metric needs labels.
    """
    if labels is None:
        if metric.labels:
            raise OptionError(f"the metric needs {metric.labels} as {argument('--labels')}")
        return None
    if metric.labels == "":
        named = argument("--metric")
        log_note(f"{name} uses no labels; name a metric that does with {named}: top-1, mae, ...")
        return None
    per_sample = DataEdit("give a label, or a row of equal length, per sample")
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise DataError("the labels have rows of different lengths", per_sample) from error
    if not array.ndim or not array.size:
        raise DataError(f"the labels have shape {list(array.shape)}", per_sample)
    if metric.labels is not None:
        _check_numbers(array)
    return array


def _check_numbers(labels: Array) -> None:
    check_no_names(labels)
    if labels.dtype.kind not in "biuf":
        raise DataError(f"the labels are {labels.dtype}", DataEdit("give numbers"))
    wrong = ~np.isfinite(labels).reshape(len(labels), -1).all(1)
    if wrong.any():
        raise DataError(
            f"{quantity(int(wrong.sum()), 'label')} of {len(labels):,} are NaN or Inf, the first "
            f"that of sample {int(wrong.argmax())}",
            DataEdit("leave these samples out"),
        )


def fitting_batches(
    data: Iterable[Sequence[Array]], inputs: Sequence[PortInfo], name: str
) -> Iterator[Any]:
    """Yield batches of the size that a file takes.

    Args:
        data: batches, arrays in the order of the inputs.
        inputs: inputs of the file.
        name: name of the file.

    Raises:
        BatchSizeError: the file has a fixed number of samples, and a batch another one.
    """
    for index, arrays in enumerate(data):
        for port, array in zip(inputs, arrays, strict=False):
            size = port.shape[0] if port.shape else None
            if not isinstance(size, int) or size < 0 or not array.ndim or len(array) == size:
                continue
            taken = f"{name} takes {quantity(size, 'sample')} at a time"
            if index:  # those before it fit
                raise BatchSizeError(
                    f"{taken}, and batch {index} has {len(array)}",
                    DataEdit(f"give a multiple of {size} samples"),
                )
            raise BatchSizeError(
                f"{taken}, and the batches have {len(array)}",
                DataEdit(f"give batches of that size ({argument('--batch-size', size)})"),
            )
        yield arrays


class Digest:
    """The SHA-256 of samples, whatever batches they come in."""

    def __init__(self) -> None:
        self._inputs: dict[int, Any] = {}

    def add(self, arrays: Sequence[Array]) -> None:
        """Take in the arrays of a batch, in the order of the inputs."""
        for index, array in enumerate(arrays):
            head = f"{index} {array.dtype.str} {array.shape[1:]}".encode()
            own = self._inputs.setdefault(index, hashlib.sha256(head))
            own.update(array.tobytes())  # bfloat16 has no buffer

    def hexdigest(self) -> str:
        """Return the digest; "" of no arrays."""
        if not self._inputs:
            return ""
        return hashlib.sha256(b"".join(d.digest() for d in self._inputs.values())).hexdigest()


def digest_of(labels: Array | None) -> str:
    """Return the SHA-256 of labels; "" without."""
    if labels is None:
        return ""
    digest = Digest()
    digest.add([labels if labels.dtype.kind in "biuf" else labels.astype(str)])
    return digest.hexdigest()
