"""From rows to the inputs of a model: a function of one's own, or a model folder's processors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.core.errors import DataError, QtoolError, describe
from qtool.frontends.data.rows import Row
from qtool.frontends.optional_packages import require

Collator = Callable[[Sequence[Row]], Any]
"""Some rows as one batch, as the model takes it."""

MAX_LENGTH = 512
"""Tokens of a text, at most, where neither the user nor the tokenizer says less."""


@dataclass(frozen=True)
class TransformCollator:
    """Images or sound through a function: of an RGB image (PIL), or of a waveform (float32 of
    shape [samples], mono) and its rate in Hz; it returns a tensor, the same shape for all."""

    function: Callable[..., Any]
    name: str

    def __call__(self, rows: Sequence[Row]) -> torch.Tensor:
        made = [self._one(row) for row in rows]
        if len({m.shape for m in made}) > 1:
            odd = next(i for i, m in enumerate(made) if m.shape != made[0].shape)
            raise DataError(
                f"{self.name} gives {list(made[odd].shape)} for {rows[odd]} and "
                f"{list(made[0].shape)} for {rows[0]}; let it resize to one shape"
            )
        return torch.stack(made)

    def _one(self, row: Row) -> torch.Tensor:
        given = (read_image(row.image),) if row.image is not None else read_sound(row.sound)
        try:
            found = self.function(*given)
        except QtoolError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{self.name} failed for {row}: {describe(error)}") from error
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        if not isinstance(found, torch.Tensor):
            raise DataError(f"{self.name} gives a {type(found).__name__}, not a tensor")
        return found


@dataclass(frozen=True)
class ProcessorCollator:
    """Rows through the tokenizer, image processor and feature extractor of a model's folder.

    forward: what the model's forward takes; what a processor gives beside it is left out.
    decoder_start: of a model with a decoder: the token that its text begins with.
    """

    tokenizer: Any = None
    images: Any = None
    sounds: Any = None
    max_length: int = MAX_LENGTH
    padded: bool = False
    decoder_start: int | None = None
    forward: frozenset[str] | None = None

    def __call__(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        if rows[0].image is not None:
            found |= self.images([read_image(r.image) for r in rows], return_tensors="pt")
        if rows[0].sound is not None:
            found |= self._heard(rows)
        elif rows[0].text is not None and self.tokenizer is not None:
            found |= self._tokens(*_texts(rows))
        if self.decoder_start is not None:
            found["decoder_input_ids"] = self._decoded(_targets(rows))
        return {k: v for k, v in found.items() if self.forward is None or k in self.forward}

    def lengths(self, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """Of each row the tokens of its texts: rows of equal lengths need no padding in a batch.
        What is padded to one length, or has none, is all alike."""
        found: list[tuple[int, ...]] = [()] * len(rows)
        if self.tokenizer is None or self.padded:
            return found
        if self.sounds is None and rows[0].text is not None:
            found = _with(found, self._ids(*_texts(rows)))
        if self.decoder_start is not None:
            found = _with(found, self._ids(_targets(rows)))
        return found

    def _ids(self, texts: list[str], pairs: list[str] | None = None, **padding: Any) -> Any:
        given = {"truncation": True, "max_length": self.max_length, **padding}
        return self.tokenizer(texts, pairs, **given)

    def _tokens(
        self, texts: list[str], pairs: list[str] | None = None
    ) -> Mapping[str, torch.Tensor]:
        padding = "max_length" if self.padded else True
        return dict(self._ids(texts, pairs, padding=padding, return_tensors="pt"))

    def _heard(self, rows: Sequence[Row]) -> Mapping[str, torch.Tensor]:
        rate = self.sounds.sampling_rate
        waves = []
        for row in rows:
            wave, found = read_sound(row.sound)
            if found != rate:
                raise DataError(f"{row} has {found} Hz, the model takes {rate}; resample it first")
            waves.append(wave)
        raw = "input_values" in self.sounds.model_input_names  # spectra have a length of their own
        given = {"padding": True} if raw else {}
        return dict(self.sounds(waves, sampling_rate=rate, return_tensors="pt", **given))

    def _decoded(self, texts: list[str]) -> torch.Tensor:
        """What the decoder is given: its first token, and all of the text but the last token."""
        assert self.decoder_start is not None
        start = torch.full((len(texts), 1), self.decoder_start)
        if self.tokenizer is None or not any(texts):
            return start
        return torch.cat([start, self._tokens(texts)["input_ids"][:, :-1]], 1)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        """Which sizes of which input vary from batch to batch."""
        lengths: dict[str, str | None] = {}
        if self.images is not None:
            lengths |= {"pixel_values": None, "pixel_mask": None}
        if self.tokenizer is not None and self.sounds is None:
            of_text = None if self.padded else "sequence"
            lengths |= dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), of_text)
        if self.sounds is not None:
            lengths |= {"input_features": None, "input_values": "samples"}
            lengths |= {"attention_mask": "samples"}
        if self.decoder_start is not None:
            lengths["decoder_input_ids"] = None if self.padded else "decoder_sequence"
        return {
            name: {0: "batch"} if varies is None else {0: "batch", 1: varies}
            for name, varies in lengths.items()
        }


def _texts(rows: Sequence[Row]) -> tuple[list[str], list[str] | None]:
    pairs = [r.pair or "" for r in rows] if rows[0].pair is not None else None
    return [r.text or "" for r in rows], pairs


def _targets(rows: Sequence[Row]) -> list[str]:
    """What a decoder is to say."""
    return [r.target or r.text or "" for r in rows]


def _with(lengths: list[tuple[int, ...]], tokens: Any) -> list[tuple[int, ...]]:
    """Texts without a token stand with the shortest: no model takes nothing."""
    more = [len(ids) for ids in tokens["input_ids"]]
    least = min(filter(None, more), default=0)
    return [(*a, max(b, least)) for a, b in zip(lengths, more, strict=True)]


def read_image(image: Any) -> Any:
    """An RGB image (PIL), of a path or of what a dataset decoded.

    Raises:
        DataError: it cannot be read; names it.
    """
    pil = require("PIL.Image", "reading images", DataError)
    if not isinstance(image, str | Path):
        return image.convert("RGB")
    try:
        with pil.open(image) as opened:
            return opened.convert("RGB")
    except Exception as error:  # decoders raise anything for damaged files
        raise DataError(f"{image} cannot be read as an image: {describe(error)}") from error


def read_sound(sound: Any) -> tuple[np.ndarray[Any, Any], int]:
    """The waveform (float32 of shape [samples], channels averaged) and its rate in Hz.

    Raises:
        DataError: it cannot be read; names it.
    """
    if isinstance(sound, Mapping):  # as `datasets` decodes it
        return np.asarray(sound["array"], np.float32), int(sound["sampling_rate"])
    library = require("soundfile", "reading sound", DataError)
    try:
        wave, rate = library.read(str(sound), dtype="float32", always_2d=True)
    except Exception as error:
        raise DataError(f"{sound} cannot be read as sound: {describe(error)}") from error
    return wave.mean(1), int(rate)


def forward_names(model: Any) -> frozenset[str] | None:
    """The names that a model's forward takes; None where it names none."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(model.forward).parameters.values()
    return frozenset(p.name for p in found if p.kind not in variadic) or None
