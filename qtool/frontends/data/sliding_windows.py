"""One long text in overlapping windows, as transformers' page on perplexity measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from qtool.core.argument_names import argument
from qtool.core.errors import DataError, describe, missing
from qtool.core.paths import is_file
from qtool.core.remedies import Argument, OtherFile
from qtool.frontends.data.collators import ProcessorCollator, processed
from qtool.frontends.data.processors import make_collator
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from qtool.frontends.own_models import CACHED_TOKENS


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of one text, a batch each; a token counts in the first window that has it.

    Attributes:
        ids: token ids of the text, int64 [1, tokens].
        length: tokens of a window; the last one may be shorter.
        stride: tokens from the begin of a window to that of the next.
        collate: rows -> ids and mask, which declares the dynamic sizes.
        decoder: the model if it has a KV cache.
        cached: tokens of a window in its cache; 0: whole windows.
    """

    ids: torch.Tensor
    length: int
    stride: int
    collate: ProcessorCollator
    decoder: DecoderWithCache | None = None
    cached: int = CACHED_TOKENS

    @property
    def _ends(self) -> list[tuple[int, int]]:
        """First token of each window, and the one after its last."""
        tokens, ends = self.ids.shape[1], list[tuple[int, int]]()
        for begin in range(0, tokens, self.stride):
            ends.append((begin, min(begin + self.length, tokens)))
            if ends[-1][1] == tokens:
                break
        return ends

    @property
    def contexts(self) -> Sequence[int]:
        """Number of first tokens of each window that the window before it has already."""
        return [0, *(end - begin for (_, end), (begin, _) in pairwise(self._ends))]

    def __len__(self) -> int:
        """Number of windows."""
        return len(self._ends)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for begin, end in self._ends:
            ids = self.ids[:, begin:end]
            mask = torch.ones_like(ids)
            if self.decoder is None:
                yield {"input_ids": ids, "attention_mask": mask}
            else:
                yield self.decoder.with_cached_prefix(ids, mask, self.cached)

    def whole_texts(self) -> SlidingWindows:
        """Return the windows with an empty KV cache, see `qtool.core.data.whole_texts`."""
        return replace(self, cached=0)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        """Dynamic dimensions of the inputs."""
        if self.decoder is not None:
            return DYNAMIC
        names = ("input_ids", "attention_mask")
        return {name: self.collate.dynamic[name] for name in names}


def sliding_windows(
    path: Path, stride: int, folder: Path | None, model: Any, max_length: int | None
) -> SlidingWindows:
    """Return the windows of a text file, which is one text.

    Args:
        path: the file.
        stride: tokens from the begin of a window to that of the next.
        folder: has the tokenizer.
        model: the model that takes the batches.
        max_length: tokens of a window; by default as for `load_data`.

    Raises:
        DataError: the file cannot be read as text, or has too few tokens; there is no tokenizer;
            or the stride leaves out tokens.
    """
    if path.suffix != ".txt":
        raise DataError(f"{path}: {argument('--stride')} is for one long text in a .txt file")
    if not is_file(path):
        raise missing(path, DataError)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text: {describe(error)}") from error
    collate = make_collator(Row(text=text), folder, model, None, max_length, padded=False)
    assert isinstance(collate, ProcessorCollator)
    assert collate.tokenizer is not None
    if not 1 <= stride <= collate.max_length:
        raise DataError(
            f"a stride of {stride} leaves out tokens of a text in windows of {collate.max_length}",
            Argument("--stride", text=f"give {{}} of 1 to {collate.max_length}"),
            Argument("--max-length", text="choose other windows with {}"),
        )
    options = {"return_tensors": "pt", "verbose": False}
    ids = processed("tokenizer", collate.tokenizer, text, **options)["input_ids"]
    if ids.shape[1] < CACHED_TOKENS + 2:
        raise DataError(f"{path} has {ids.shape[1]} tokens", OtherFile("give a longer text"))
    decoder = model if isinstance(model, DecoderWithCache) else None
    return SlidingWindows(ids, collate.max_length, stride, collate, decoder)
