"""Data as people have it, in batches that a model takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.data.array_files import SUFFIXES, ArrayFiles
from qtool.core.errors import DataError
from qtool.core.paths import is_dir, is_file
from qtool.frontends.data.collators import Collator, ProcessorCollator
from qtool.frontends.data.processors import make_collator
from qtool.frontends.data.rows import Row, class_numbers, read_rows
from qtool.frontends.huggingface.causal_decoder import CachedPrefixCollator, DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import DecoderPart, EncoderPart, PartCollator
from qtool.frontends.named_objects import call_user_code, evaluate_call, import_object, is_call


@dataclass(frozen=True)
class Rows:
    """Samples read and encoded as they are asked for, a batch at a time.

    unread: the samples that were left out since they could not be read.
    """

    batches: Sequence[Sequence[Row]]
    collate: Collator
    classes: Mapping[str, int] | None = None
    unreadable: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def rows(self) -> list[Row]:
        """The samples in the order of the batches."""
        return list(chain.from_iterable(self.batches))

    @property
    def name(self) -> str:
        """Differs where the samples, their order or the batches do."""
        found = hashlib.blake2b(digest_size=16)
        for batch in self.batches:
            for row in batch:
                told = (row.image, row.sound, row.text, row.pair, row.label)
                # not what is decoded
                texts = [str(t) for t in told if isinstance(t, str | int | Path)]
                found.update(f"{texts}\n".encode())
            found.update(b"\n")
        return f"{len(self.rows)} samples {found.hexdigest()} in {len(self)} batches"

    def __iter__(self) -> Iterator[Any]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[Any]:
        """Every `step`-th batch from the `first` on; no other one is read."""
        for batch in self.batches[first::step]:
            yield self.collate(batch)

    @property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Class numbers, int64 of shape [samples]; None where the data names none."""
        return class_numbers(self.rows, self.classes or {})

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]] | None:
        """The sizes that vary from batch to batch, as `capture_model` takes them; None where only
        the number of samples does."""
        if not isinstance(self.collate, ProcessorCollator | CachedPrefixCollator | PartCollator):
            return None
        inputs = self.collate(self.batches[0][:1])
        return {name: sizes for name, sizes in self.collate.dynamic.items() if name in inputs}


def load_data(
    source: str | Path,
    batch_size: int = 32,
    *,
    model: Any = None,
    folder: str | Path | None = None,
    transform: str | None = None,
    max_length: int | None = None,
    padded: bool = False,
    unreadable: float = 0.0,
    without: tuple[str, ...] = (),
) -> Iterable[Any]:
    """Batches of a source of data. Texts of one batch have equal lengths, so that there is no
    padding: for their order see `Rows.rows` and `Rows.labels`.

    Args:
        source: `package.module:function` (or a call of it with literals) that returns an iterable
            of batches; a .npy or .npz file or a folder of them; a folder of images or sound, by
            class in subfolders or not; a .txt file of a text a line; a .jsonl file; a folder that
            `Dataset.save_to_disk` wrote.
        model: the model that takes the batches, where it is at hand.
        folder: a local folder with a tokenizer, image processor or feature extractor.
        transform: how images or sound become tensors: `package.module:function`, the name of
            torchvision's weights ("ResNet18_Weights.DEFAULT"), or "timm" for those of the model.
        max_length: of a text, in tokens.
        padded: whether every text is padded to it.
        unreadable: the share of images or sounds that may fail to be read, and is left out.
        without: names of arrays that are no inputs.

    Raises:
        DataError: there is none, it cannot be read, or it is not said how it becomes tensors.
    """
    path = Path(source)
    named = ":" in str(source) and not (is_file(path) or is_dir(path))
    arrays = not named and (path.suffix in SUFFIXES or _has_arrays(path))
    given: dict[str, Any] = {"transform": transform, "max_length": max_length}
    given |= {"padded": padded, "unreadable": unreadable}
    if (named or arrays) and (odd := [name for name, value in given.items() if value]):
        raise DataError(f"{source} gives what the model takes as it is; leave out {odd[0]}")
    if named:
        return _from_code(str(source))
    if arrays:
        files = ArrayFiles(path, batch_size, without)
        files.files()
        return files
    rows = read_rows(path)
    place = None if folder is None else Path(folder)
    half = model if isinstance(model, EncoderPart | DecoderPart) else None
    whole = model if half is None else half.model
    plain = make_collator(rows[0], place, whole, transform, max_length, padded)
    encode = CachedPrefixCollator(plain, model) if isinstance(model, DecoderWithCache) else plain
    encode = encode if half is None else PartCollator(encode, half)
    unread = _find_unreadable(rows, encode, unreadable) if unreadable else {}
    if isinstance(model, DecoderWithCache) and model.cache_scales is not None:
        batch_size = 1  # its kernel takes several samples for a prompt or a single token alone
    kept = [row for at, row in enumerate(rows) if at not in unread]
    lengths = plain.lengths(kept) if isinstance(plain, ProcessorCollator) else [()] * len(kept)
    batches = _equal_length_batches(kept, lengths, batch_size)
    return Rows(batches, encode, _classes(model), tuple(unread.values()))


def _equal_length_batches(
    rows: Sequence[Row], lengths: Sequence[tuple[int, ...]], size: int
) -> list[Sequence[Row]]:
    """Batches of rows of equal lengths: nothing in them is padding, which would count in ranges and
    in the noise of outputs, though nobody reads it. The largest come first, else they are in order;
    last those of a length of 1, since a first one would make that length a constant.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, length in enumerate(lengths):
        places.setdefault(length, []).append(place)
    cut = [
        (1 in length, -len(some[at : at + size]), some[at : at + size])
        for length, some in places.items()
        for at in range(0, len(some), size)
    ]
    return [[rows[place] for place in batch] for _, _, batch in sorted(cut)]


def _from_code(source: str) -> Iterable[Any]:
    if is_call(source):
        found: Iterable[Any] = evaluate_call(source, DataError)
        return found
    made: Any = import_object(source, DataError)
    data: Iterable[Any] = (
        call_user_code(made, [], {}, source, DataError) if callable(made) else made
    )
    return data


def _has_arrays(path: Path) -> bool:
    return is_dir(path) and any(p.suffix in SUFFIXES for p in path.iterdir())


def _find_unreadable(rows: Sequence[Row], encode: Collator, share: float) -> dict[int, str]:
    """Place -> what is wrong, of samples that cannot be read.

    Raises:
        DataError: they are more than the share that is tolerated.
    """
    failed = ((at, _failure(row, encode)) for at, row in enumerate(rows))
    found = {at: why for at, why in failed if why is not None}
    if len(found) > share * len(rows):
        raise DataError(
            f"{len(found)} of {len(rows)} samples cannot be read, more than the share of "
            f"{share:g} that is tolerated; the first: {next(iter(found.values()))}"
        )
    return found


def _failure(row: Row, encode: Collator) -> str | None:
    try:
        encode([row])
    except DataError as error:
        return str(error)
    return None


def _classes(model: Any) -> Mapping[str, int]:
    """The class numbers of a model that names its classes."""
    found = getattr(getattr(model, "config", None), "label2id", None)
    return {str(k): int(v) for k, v in found.items()} if isinstance(found, Mapping) else {}
