"""Loads data from functions, files and folders, in batches of model inputs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from qtool.core.argument_names import argument
from qtool.core.atomic import scratch_folder
from qtool.core.data.arguments import Arguments
from qtool.core.data.array_files import ArrayFiles
from qtool.core.data.subset import first_samples
from qtool.core.data_options import DataOptions
from qtool.core.errors import DataError
from qtool.core.label_names import check_label_array
from qtool.core.log import log_warning
from qtool.core.numpy_files import SUFFIXES, even_positions, has_arrays
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import CallEdit, DataEdit
from qtool.frontends.data.class_order import (
    check_names,
    chosen_classes,
    class_numbers,
    model_classes,
)
from qtool.frontends.data.collators import (
    Collator,
    ProcessorCollator,
    UnreadableFileError,
    render_conversations,
)
from qtool.frontends.data.number_tables import number_table
from qtool.frontends.data.processors import make_collator
from qtool.frontends.data.recordings import unroll_recordings
from qtool.frontends.data.rows import Row, note_others, read_rows
from qtool.frontends.data.sample_names import SampleNames
from qtool.frontends.data.sliding_windows import sliding_windows
from qtool.frontends.data.tables import (
    has_named_columns,
    number_batches,
    parse_columns,
)
from qtool.frontends.data.unreadable_samples import find_unreadable, skipping
from qtool.frontends.data.unused_options import (
    ARRAYS,
    BATCHES,
    COLUMNS,
    NAMES,
    NUMBERS,
    TEXTS,
    WINDOWS,
    check_used,
    check_values,
)
from qtool.frontends.huggingface.causal_decoder import CachedPrefixCollator, DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import (
    TWO_PARTS,
    DecoderPart,
    EncoderDecoder,
    EncoderPart,
    PartCollator,
)
from qtool.frontends.named_objects import call_user_code, evaluate_call, import_object, is_call
from qtool.frontends.torch.example_inputs import SuggestedSizes


@dataclass(frozen=True)
class Rows:
    """Samples that are read and collated lazily, one batch at a time.

    Attributes:
        batches: rows of each batch.
        collate: rows -> model inputs.
        classes: class name -> number, as the user chose or from the model's configuration.
        unreadable: errors of samples that were skipped.
        chosen: whether the user chose `classes`.
    """

    batches: Sequence[Sequence[Row]]
    collate: Collator
    classes: Mapping[str, int] | None = None
    unreadable: tuple[str, ...] = ()
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
    def positions(self) -> np.ndarray[Any, Any]:
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
        if not isinstance(self.collate, CachedPrefixCollator | PartCollator):
            return self
        return replace(self, collate=replace(self.collate, cached=0))

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Yield every `step`-th batch from `first` on; others are not read."""
        yield from map(self._read, self.batches[first::step])

    def _read(self, batch: Sequence[Row]) -> Any:
        try:
            return self.collate(batch)
        except UnreadableFileError as error:
            more = self.sample_count > 1
            skip = (DataEdit("remove it"), skipping(1, self.sample_count)) if more else ()
            raise DataError(error.problem, *error.remedies, *skip) from error

    def sample_names(self) -> SampleNames:
        """Return the names of the samples and classes, for a report."""
        return SampleNames.of(self.rows, self.classes or {}, self.labels)

    @cached_property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Class numbers, int64 [samples]; None without labels. DataError for a name that is none of
        the chosen classes."""
        if self.chosen:
            check_names([row.label for row in self.rows], self.classes or {})
        return class_numbers(self.rows, self.classes or {})

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]] | None:
        """Dynamic dimensions for `capture_model`; None if only the batch size varies."""
        if not isinstance(self.collate, ProcessorCollator | CachedPrefixCollator | PartCollator):
            return None
        inputs = self.collate(self.batches[0][:1])
        declared = self.collate.dynamic.items()
        return SuggestedSizes(
            {name: sizes for name, sizes in declared if name.partition(".")[0] in inputs}
        )


def load_data(
    source: str | Path,
    batch_size: int,
    options: DataOptions,
    *,
    model: Any = None,
    model_folder: str | Path | None = None,
    without: tuple[str, ...] = (),
    labels: str | None = None,
) -> Iterable[Any]:
    """Load batches of tensors; see `qtool.load_data`.

    Args:
        options: how the data is read.
        without: names of arrays that are not inputs.

    Raises:
        DataError: there is no data, it cannot be read, there is no preprocessing for it, or an
            argument does nothing for such data. OptionError: a number is out of its range.
    """
    check_values(batch_size, labels)
    path = Path(source)
    named = ":" in str(source) and not (is_file(path) or is_dir(path))
    arrays = not named and (path.suffix in SUFFIXES or has_arrays(path))
    samples, states = options.samples, options.states
    without = without if labels is None else (*without, labels)
    chosen = parse_columns(options.column)
    if named or arrays:
        check_used(source, (BATCHES if named else ARRAYS,), options)
    if states is not None:
        if isinstance(states, str) and states != AUTO:
            raise DataError(f"states is {states!r}", CallEdit(f"give output -> input, or {AUTO!r}"))
        recordings = _recordings(source, path, named, arrays, without)
        pairs = None if isinstance(states, str) else states
        return unroll_recordings(model, recordings, pairs, samples)
    if named:
        code, module = _from_code(str(source)), model if isinstance(model, nn.Module) else None
        return code if samples is None else first_samples(code, samples, module)
    if arrays:
        note_others(path)
        (files := ArrayFiles(path, batch_size, without, samples)).files()
        if labels is not None:
            check_label_array(files, labels, input_names(model))
        return files
    folder_path = None if (own := options.folder or model_folder) is None else Path(own)
    if options.stride is not None:
        check_used(source, (WINDOWS,), options)
        return sliding_windows(path, options.stride, folder_path, model, options.max_length)
    order = chosen_classes(path, options.classes)
    numbers = model_classes(model) if order is None else order
    takes = Arguments.of(model if isinstance(model, nn.Module) else None)
    if (table := number_table(path, chosen, labels, numbers, takes)) is not None:
        columns, target, has_names = table
        check_used(source, (NUMBERS, COLUMNS, *([NAMES] if has_names else [])), options)
        return number_batches(
            path, columns, target, takes, chosen=chosen, batch_size=batch_size, samples=samples
        )
    rows = read_rows(path, chosen, labels)
    check_used(source, _kinds(rows, path), options)
    rows = [replace(rows[at], position=at) for at in even_positions(len(rows), samples)]
    if isinstance(model, EncoderDecoder):
        raise DataError(TWO_PARTS)
    whole = model.model if isinstance(model, EncoderPart | DecoderPart) else model
    texts = options.max_length, options.padded
    plain = make_collator(rows[0], folder_path, whole, options.transform, *texts)
    if rows[0].messages and isinstance(plain, ProcessorCollator):
        rows = render_conversations(rows, plain.tokenizer, folder_path)
        plain = replace(plain, special=False)
    collate = _for_model(plain, model)
    share = options.unreadable
    errors = find_unreadable(rows, collate, share) if share else {}
    readable = [row for at, row in enumerate(rows) if at not in errors]
    if isinstance(plain, ProcessorCollator):
        _warn_unknown(plain.unknown_share(readable[:CHECKED_TEXTS]), source)
    batches = _equal_length_batches(readable, plain, _batch_size(model, batch_size))
    return Rows(batches, collate, numbers, tuple(errors.values()), order is not None)


def input_names(model: object) -> frozenset[str]:
    """Return the names of the inputs of a model; empty without one."""
    return Arguments.of(model).required if isinstance(model, nn.Module) else frozenset()


def _kinds(rows: Sequence[Row], path: Path) -> set[str]:
    """Return the kinds of data that rows are of, as `check_used` takes them."""
    first = rows[0]
    kinds = {*first.kinds, *([TEXTS] if first.target is not None else [])}
    kinds |= {COLUMNS} if has_named_columns(path) else set()
    return kinds | ({NAMES} if any(isinstance(row.label, str) for row in rows) else set())


def _batch_size(model: Any, size: int) -> int:
    """Return the batch size for a model: grouped attention with a cache takes several samples only
    for a prompt or a single token."""
    cached = isinstance(model, DecoderWithCache) and model.is_grouped and model.empty_cache is None
    return 1 if cached else size


def example_texts(model: Any, folder: str | Path) -> Iterable[Any] | None:
    """Return a batch of texts for a model, to capture it and to verify a file; None where the
    folder of the model has no tokenizer."""
    with scratch_folder() as place:
        texts = place / "texts.txt"
        texts.write_text(f"{_EXAMPLE_TEXT}\n" * 2)
        try:
            return load_data(texts, 2, DataOptions(folder=folder), model=model)
        except DataError:
            return None


def _for_model(plain: Collator, model: Any) -> Collator:
    """Return a collator with the inputs of a cache, or of the part of a model that is converted."""
    if isinstance(model, DecoderWithCache):
        return CachedPrefixCollator(plain, model)
    return PartCollator(plain, model) if isinstance(model, EncoderPart | DecoderPart) else plain


_EXAMPLE_TEXT = "The weather is fine today, so we walk along the river and look at the boats."

CHECKED_TEXTS = 64
MANY_UNKNOWN = 0.5

AUTO = "auto"
"""In place of pairs of states: those of one shape and a similar name."""


def _recordings(
    source: str | Path, path: Path, named: bool, arrays: bool, without: tuple[str, ...]
) -> Iterable[Any]:
    """Return the batches of a function, or each file of arrays as a batch."""
    if named:
        return _from_code(str(source))
    if not arrays:
        raise DataError(
            f"{source} has no recordings for {argument('--state')}",
            CallEdit("give .npy or .npz files with a row per step, or package.module:function"),
        )
    return ArrayFiles(path, sys.maxsize, without)


def _warn_unknown(share: float, source: str | Path) -> None:
    if share > MANY_UNKNOWN:
        log_warning(
            f"{100 * share:.0f} % of the tokens of {source} are unknown to the tokenizer: it is of "
            "another language or model, and ranges on such texts mean little"
        )


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


def _from_code(source: str) -> Iterable[Any]:
    if is_call(source):
        data: Iterable[Any] = evaluate_call(source, DataError)
        return data
    data = import_object(source, DataError)
    return call_user_code(data, [], {}, source, DataError) if callable(data) else data
