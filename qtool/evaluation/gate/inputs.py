"""Labels and batches of a gate before it runs, and their digests; texts where there is no data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import open_model
from qtool.backends.onnxruntime.cached_decoder import CachedDecoder
from qtool.backends.session import PortInfo
from qtool.core.argument_names import argument
from qtool.core.errors import DataError, OptionError
from qtool.core.log import log_note
from qtool.core.number_texts import quantity
from qtool.core.progress import no_progress
from qtool.core.random_inputs import is_cache
from qtool.core.remedies import Argument, DataEdit
from qtool.core.types import Array, Progress
from qtool.core.value_names import MASK
from qtool.evaluation.generation import next_tokens
from qtool.evaluation.language_model import LOGITS, POSITIONS
from qtool.evaluation.model_inputs import describe_input
from qtool.evaluation.options import GenerationOptions
from qtool.metrics.labels import check_no_names
from qtool.metrics.named_metrics import GateMetric


class BatchSizeError(DataError):
    """A batch of another size than the quantized file takes."""


def read_labels(name: str, metric: GateMetric, labels: Any) -> Array | None:
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


# Texts that the float file of a language model writes itself, where there is no data.
#
# A first token is drawn at random, and each next one by its probability: texts of the distribution
# that the model has learned, as in LLM-QAT (Liu et al., 2023).


IDS = "input_ids"
TEXTS, TOKENS = 32, 32
"""Number of texts, and of tokens in each."""


def is_decoder(file: str | Path) -> bool:
    """Return whether a file has logits of tokens, and takes tokens and a KV cache alone.

    The decoder behind an encoder also takes what that has computed.
    """
    session = open_model(file)
    others = [port.name for port in session.inputs if not is_cache(describe_input(port))]
    cached = len(others) < len(session.inputs) and set(others) <= {IDS, MASK, POSITIONS}
    return cached and any(port.name == LOGITS for port in session.outputs)


def own_texts(
    file: Path, labels: object = None, progress: Progress = no_progress
) -> Iterable[dict[str, Array]]:
    """Return batches of one text.

    Args:
        file: the file of a decoder with its KV cache.
        labels: those of the user, who has no data; such texts have none.
        progress: wraps the iterable of texts.

    Raises:
        DataError: it is another model, or there are labels.
    """
    if labels is not None or not is_decoder(file):
        raise DataError("there is no data", Argument("--data", text="give some with {}"))
    log_note(f"without data: {TEXTS} texts of {TOKENS} tokens that {file.name} writes itself")
    decoder = CachedDecoder(file, TOKENS)
    size = len(decoder.logits([0]))
    starts = np.random.default_rng(0).integers(size, size=TEXTS)
    batches = []
    for seed, start in enumerate(progress(starts.tolist())):
        decoder.restart()
        options = GenerationOptions(tokens=TOKENS - 1, temperature=1.0, seed=seed)
        ids = np.array([[start, *next_tokens(decoder, [start], options)]])
        batches.append({IDS: ids, MASK: np.ones_like(ids)})
    return batches
