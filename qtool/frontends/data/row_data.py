"""Samples of texts, images, sounds and tables of numbers, in batches of model inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from qtool.core.argument_names import argument
from qtool.core.columns import Columns
from qtool.core.data.arguments import Arguments
from qtool.core.data_options import DataOptions
from qtool.core.errors import DataError
from qtool.core.numpy_files import even_positions
from qtool.core.remedies import CallEdit
from qtool.core.types import Array
from qtool.frontends.data.class_order import (
    check_names,
    chosen_classes,
    class_numbers,
    model_classes,
)
from qtool.frontends.data.collators import (
    Collator,
    ProcessorCollator,
    render_conversations,
)
from qtool.frontends.data.processors import make_collator
from qtool.frontends.data.rows import Row, read_rows
from qtool.frontends.data.sample_names import SampleNames
from qtool.frontends.data.tables import number_batches, number_columns
from qtool.frontends.own_models import TaskCollator, TaskModel
from qtool.frontends.torch.example_inputs import SuggestedSizes


@dataclass(frozen=True)
class Rows:
    """Samples that are read and collated lazily, one batch at a time.

    Attributes:
        batches: rows of each batch.
        collate: rows -> model inputs.
        classes: class name -> number, as the user chose or from the model's configuration.
        chosen: whether the user chose `classes`.
    """

    batches: Sequence[Sequence[Row]]
    collate: Collator
    classes: Mapping[str, int] | None = None
    chosen: bool = False

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def sample_count(self) -> int:
        """Number of samples in all batches."""
        return sum(map(len, self.batches))

    @property
    def rows(self) -> list[Row]:
        """The samples in the order of the batches."""
        return list(chain.from_iterable(self.batches))

    @property
    def positions(self) -> Array:
        """Positions of `rows` among the samples of the data, int64 [samples]."""
        return np.array([row.position for row in self.rows], np.int64)

    @property
    def name(self) -> str:
        """A name that identifies the samples, their order and the batches."""
        digest = hashlib.blake2b(digest_size=16)
        for batch in self.batches:
            for row in batch:
                fields = (row.image, row.sound, row.text, row.pair, row.label)
                # decoded images and sounds are left out
                texts = [str(t) for t in fields if isinstance(t, str | int | Path)]
                digest.update(f"{texts}\n".encode())
            digest.update(b"\n")
        return f"{len(self.rows)} samples {digest.hexdigest()} in {len(self)} batches"

    def __iter__(self) -> Iterator[Any]:
        return self.every(0, 1)

    def whole_texts(self) -> Rows:
        """Return the samples with an empty KV cache, see `qtool.core.data.whole_texts`."""
        if not isinstance(self.collate, TaskCollator):
            return self
        return replace(self, collate=replace(self.collate, cached=0))

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield every `step`-th batch from `first` on; others are not read."""
        yield from map(self.collate, self.batches[first::step])

    def sample_names(self) -> SampleNames:
        """Return the names of the samples and classes, for a report."""
        return SampleNames.of(self.rows, self.classes or {}, self.labels)

    @cached_property
    def labels(self) -> Array | None:
        """Class numbers, int64 [samples]; None without labels. DataError for a name that is none of
        the chosen classes."""
        if self.chosen:
            check_names([row.label for row in self.rows], self.classes or {})
        return class_numbers(self.rows, self.classes or {})

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]] | None:
        """Dynamic dimensions for `capture_model`; None if only the batch size varies."""
        if not isinstance(self.collate, ProcessorCollator | TaskCollator):
            return None
        inputs = self.collate(self.batches[0][:1])
        declared = self.collate.dynamic.items()
        return SuggestedSizes(
            {name: sizes for name, sizes in declared if name.partition(".")[0] in inputs}
        )


def load_rows(
    source: str | Path,
    batch_size: int,
    options: DataOptions,
    model: Any,
    folder: Path | None,
    labels: str | None,
) -> Iterable[Any]:
    """Load the samples of files in batches; see `qtool.load_data`.

    Args:
        source: path of a file or folder.
        folder: folder of the model, whose processors read the samples; None without.

    Raises:
        DataError: as for `load_data`.
    """
    path, samples, chosen = Path(source), options.samples, _parse_columns(options.column)
    order = chosen_classes(path, options.classes)
    numbers = model_classes(model) if order is None else order
    takes = Arguments.of(model if isinstance(model, nn.Module) else None)
    if (table := number_table(path, chosen, labels, numbers, takes)) is not None:
        columns, target = table
        return number_batches(
            path, columns, target, takes, chosen=chosen, batch_size=batch_size, samples=samples
        )
    rows = read_rows(path, chosen, labels)
    rows = [replace(rows[at], position=at) for at in even_positions(len(rows), samples)]
    task = model if isinstance(model, TaskModel) else None
    whole = model if task is None else task.read_for
    texts = options.max_length, options.padded
    plain = make_collator(rows[0], folder, whole, options.transform, *texts)
    if rows[0].messages and isinstance(plain, ProcessorCollator):
        rows = render_conversations(rows, plain.tokenizer, folder)
        plain = replace(plain, special=False)
    collate = plain if task is None else task.collator(plain)
    size = batch_size if task is None else task.batch_size(batch_size)
    batches = _equal_length_batches(rows, plain, size)
    return Rows(batches, collate, numbers, order is not None)


def _parse_columns(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names out of a list, or of a text where commas separate them."""
    names: Sequence[Any] = columns.split(",") if isinstance(columns, str) else columns or ()
    stripped = tuple(name.strip() if isinstance(name, str) else "" for name in names)
    if not all(stripped):
        raise DataError(
            f"{argument('--column')} is {columns!r:.40}", CallEdit("give names of columns")
        )
    return stripped


def _equal_length_batches(rows: Sequence[Row], collate: Collator, size: int) -> list[Sequence[Row]]:
    """Return batches of rows of equal length, which need no padding.

    Padding would affect ranges and the noise of outputs. The largest batches come first, in order
    of their first rows; batches of length 1 last, since a first one would fix that dimension.
    """
    lengths: list[tuple[int, ...]] = [()] * len(rows)
    if isinstance(collate, ProcessorCollator):
        lengths = collate.lengths(rows)
    by_length: dict[tuple[int, ...], list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    keyed = [
        (1 in length, -len(some[at : at + size]), some[at : at + size])
        for length, some in by_length.items()
        for at in range(0, len(some), size)
    ]
    return [[rows[index] for index in batch] for _, _, batch in sorted(keyed)]


def number_table(
    path: Path,
    chosen: Sequence[str],
    label: str | None,
    numbers: Mapping[str, int],
    arguments: Arguments,
) -> tuple[Columns, Array | None] | None:
    """Return the columns of inputs and of labels of a table of numbers; None of other data.

    `numbers` are those of class names.
    """
    table = number_columns(path, chosen, label, arguments)
    if table is not None and table[1] is not None and table[1].dtype == object:
        target = class_numbers([Row(label=str(name)) for name in table[1]], numbers)
        return table[0], target
    return table
