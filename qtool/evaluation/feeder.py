"""The user's batches for model files: arrays by the names of the inputs, and the pass over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qtool.backends.open_files import open_model
from qtool.backends.session import FLOATS, PortInfo, Session, fit_channels
from qtool.core import random_inputs as generated
from qtool.core.array_batches import whole_arrays
from qtool.core.data import Batch, batches, to_batch
from qtool.core.data.arguments import Arguments
from qtool.core.data.named_tensors import named_leaves
from qtool.core.errors import DataError
from qtool.core.option_names import NATIVE
from qtool.core.remedies import CallEdit
from qtool.core.store import Store
from qtool.core.types import Array, Progress
from qtool.core.value_names import MASK
from qtool.distributed import current
from qtool.evaluation.language_model import POSITIONS
from qtool.evaluation.measure.input_arrays import check_names, fit_array
from qtool.evaluation.measure.output_pass import FirstBatches, Reference, measure_arrays
from qtool.evaluation.model_inputs import DTYPES, describe_input
from qtool.frontends.data.table_remedies import columns_in_errors
from qtool.metrics.sample_statistics import SampleStatistics


class Feeder:
    """The inputs of a file; converts batches to arrays for them.

    Attributes:
        inputs: inputs in order.
        names: names of the inputs.
        arguments: the same, as those of a model.
        batch_size: the number of samples that the file takes; None if it is not fixed.
    """

    def __init__(self, file: str | Path | Session) -> None:
        session = open_model(file) if isinstance(file, str | Path) else file
        self.inputs, self._moves = session.inputs, getattr(session, "is_foreign", False)
        self.names = [i.name for i in self.inputs]
        self.arguments = Arguments(frozenset(self.names), frozenset(self.names))
        firsts = {i.shape[0] if i.shape else None for i in self.inputs}
        size = next(iter(firsts)) if len(firsts) == 1 else None
        self.batch_size = size if isinstance(size, int) and size > 0 else None

    def arrays(self, item: Any, index: int) -> list[Array]:
        """Return one batch as arrays in the order of the file's inputs.

        Extra items of a tuple are ignored, so that (images, labels) works; labels in a dict, too,
        and its only other entry is the only input, whatever its key. Nested items have the
        names of `named_leaves`. A batch without the KV cache of a decoder starts with an empty
        one, and positions are those of the attention mask.

        Raises:
            DataError: an input is missing, has another type or shape, or holds NaN or Inf.
        """
        names = self.names
        batch, _ = self.arguments.of_batch(to_batch(item))
        values = named_leaves(batch, names)
        empty = {}
        if not values.keys() >= set(names):
            empty = self._empty_cache(values) | self._positions(values)
        check_names(values, [i for i in self.inputs if i.name not in empty], index, _hint)
        values |= empty
        Batch((), {n: values[n] for n in names}).check_finite(index)
        if self._moves:
            values |= {i.name: _moved(values[i.name], i.shape) for i in self.inputs}
        return [_array(i, values[i.name], index) for i in self.inputs]

    def _positions(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the positions of tokens in a batch that has none, as `generate` of transformers
        counts them: padding in front of a text does not move it."""
        mask, ids = values.get(MASK), values.get("input_ids")
        if POSITIONS not in self.names or POSITIONS in values or mask is None or ids is None:
            return {}
        counted = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return {POSITIONS: counted[:, -ids.shape[1] :]}

    def _empty_cache(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return a KV cache without tokens for a batch that has no part of a cache."""
        caches = [c for c in map(describe_input, self.inputs) if generated.is_cache(c)]
        if any(c.name in values or c.dtype not in DTYPES.values() for c in caches):
            return {}
        samples = Batch((), dict(values)).size
        lengths = [c.shape[generated.CACHED_TOKENS] for c in caches]
        shapes = generated.sizes(caches, samples, {s: 0 for s in lengths if isinstance(s, str)})
        return {
            c.name: torch.zeros(shape, dtype=getattr(torch, c.dtype))
            for c, shape in zip(caches, shapes, strict=True)
        }


def _moved(tensor: Any, shape: Sequence[int | str | None]) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.from_numpy(fit_channels(tensor.detach().cpu().numpy(), shape))


def _array(port: PortInfo, tensor: Any, index: int) -> Array:
    """Return a tensor as an array for an input."""
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise DataError(f"batch {index}, input '{port.name}' is a {kind}, not a tensor")
    if port.type in FLOATS and tensor.is_floating_point():
        tensor = tensor.to(getattr(torch, DTYPES[port.type]))  # numpy has no bfloat16
    return fit_array(port, tensor.detach().cpu().numpy(), index)


def data_inputs(
    path: str | Path, data: Iterable[Any], progress: Progress = lambda x: x
) -> Iterator[list[Array]]:
    """Iterate over the user's batches as arrays in the order of the file's inputs.

    Raises:
        DataError: a batch does not fit the file, see `Feeder`.
    """
    yield from feed(Feeder(path), data, progress)


def feed(
    feeder: Feeder,
    data: Iterable[Any],
    progress: Progress = lambda x: x,
    check: Callable[[], None] = lambda: None,
) -> Iterator[list[Array]]:
    """Yield batches as arrays; `check` is called before each, `progress` wraps the iterable."""
    table, data = data, whole_arrays(data, feeder.arguments)
    stream = batches(progress(data), inputs=feeder.names, size=feeder.batch_size)
    for index, batch in enumerate(stream):
        check()
        with columns_in_errors(table, lambda x: feeder.arrays(x, 0), batch):
            arrays = feeder.arrays(batch, index)
        yield arrays


def measure_outputs(
    files: Sequence[Path],
    data: Iterable[Any],
    *,
    runtime: str = NATIVE,
    reference: Reference | None = None,
    first: FirstBatches | None = None,
    store: Store | None = None,
    progress: Progress = lambda x: x,
    contexts: Sequence[int] | None = None,
) -> SampleStatistics:
    """Run every file on every batch, with default session options; padded positions are ignored.

    Args:
        files: models with the same inputs and outputs; the first is the reference.
        data: batches.
        runtime: see `open_model`.
        reference: the first file, with outputs of earlier passes.
        first: receives the first batches.
        store: where intermediate results are, from which an interrupted run resumes if the data is
            the same.
        progress: wraps the iterable of batches.
        contexts: per batch, number of first tokens that are no targets (`SlidingWindows`).

    Raises:
        DataError: no data, or data that does not fit. VerificationError: a file does not run.
    """
    if isinstance(data, str | bytes) or not hasattr(data, "__iter__"):
        raise DataError(f"data of type {type(data).__name__} is not an iterable of batches")
    reference = reference or Reference(files[0], runtime)
    stream = feed(Feeder(reference.session), data, progress, current().check)
    return measure_arrays(
        files,
        stream,
        runtime=runtime,
        reference=reference,
        first=first,
        store=store,
        contexts=contexts,
    )


def _hint(missing: str) -> list[CallEdit]:
    """Return how to get an input that no data has."""
    if missing.partition(".")[0] != "cross":
        return []
    text = "the encoder computes it, so give the float model: `qtool report FILE --model FOLDER`"
    return [CallEdit(f"{text}, or `qtool evaluate`")]
