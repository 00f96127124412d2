"""Turns rows into model inputs: by the user's function or by a model folder's processors."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.core.data import to_tensor
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import DataError, errors_as
from qtool.core.paths import is_special_file
from qtool.core.remedies import Argument, CallEdit, DataEdit
from qtool.core.types import Array
from qtool.core.user_code import uncompiled
from qtool.frontends.data.rows import Row
from qtool.frontends.optional_packages import require

Collator = Callable[[Sequence[Row]], Any]
"""Rows -> one batch of model inputs."""

MAX_LENGTH = 512
"""Default maximum number of tokens of a text; the tokenizer may have a smaller one."""


@dataclass(frozen=True)
class TransformCollator:
    """Applies a function to images or sounds.

    Attributes:
        function: takes an image (PIL) in RGB, or as it is stored where its values have more than 8
            bits; or a mono waveform (float32 [samples]) and its rate in Hz; returns a tensor of one
            shape for all.
        name: name of the function, for messages.
        in_8_bits: whether images with more bits are refused.
    """

    function: Callable[..., Any]
    name: str
    in_8_bits: bool = False

    def __call__(self, rows: Sequence[Row]) -> torch.Tensor:
        tensors = [self._apply(row) for row in rows]
        if len({t.shape for t in tensors}) > 1:
            odd = next(i for i, t in enumerate(tensors) if t.shape != tensors[0].shape)
            raise DataError(
                f"{self.name} returns {list(tensors[odd].shape)} for {rows[odd]} and "
                f"{list(tensors[0].shape)} for {rows[0]}",
                CallEdit("resize to one shape"),
            )
        return torch.stack(tensors)

    def _apply(self, row: Row) -> torch.Tensor:
        is_image = row.image is not None
        args = (read_image(row.image, self.in_8_bits),) if is_image else read_sound(row.sound)
        with errors_as(DataError, f"{self.name} failed for {row}", of=(Exception, SystemExit)):
            tensor = self.function(*args)
        if isinstance(tensor, np.ndarray):
            tensor = to_tensor(tensor)
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                f"{self.name} returns a {type(tensor).__name__}, not a tensor; end it with "
                "torchvision.transforms.ToTensor() or torch.as_tensor"
            )
        if tensor.dim() == 4 and len(tensor) == 1 and row.image is not None:
            raise DataError(
                f"{self.name} returns a batch, {list(tensor.shape)}",
                CallEdit("return one image, without the first dimension"),
            )
        return tensor


def processed(what: str, processor: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of a model's processor.

    Args:
        what: kind of the processor, for messages.

    Raises:
        DataError: the processor fails; configurations of a folder make it raise any exception.
    """
    with errors_as(DataError, f"the {what} of the model does not take the data"):
        return processor(*args, **options)


@dataclass(frozen=True)
class ProcessorCollator:
    """Applies the tokenizer, image processor and feature extractor of a model's folder.

    Attributes:
        tokenizer: what reads texts, or None.
        images: image processor, or None.
        sounds: feature extractor, or None.
        max_length: most tokens of a text.
        padded: pad every text to `max_length`.
        decoder_start: first token of the decoder's text; None without a decoder.
        forward: parameters of the model's forward; other outputs of processors are dropped, but for
            the first where none is one. None keeps all.
        special: add the tokenizer's special tokens; the template of a conversation has them.
    """

    tokenizer: Any = None
    images: Any = None
    sounds: Any = None
    max_length: int = MAX_LENGTH
    padded: bool = False
    decoder_start: int | None = None
    forward: frozenset[str] | None = None
    special: bool = True

    def __call__(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        inputs: dict[str, torch.Tensor] = {}
        if rows[0].image is not None:
            images = [read_image(r.image) for r in rows]
            inputs |= processed("image processor", self.images, images, return_tensors="pt")
        if rows[0].sound is not None:
            inputs |= self._sounds(rows)
        elif rows[0].text is not None and self.tokenizer is not None:
            inputs |= self._tokens(*_texts(rows))
        if self.decoder_start is not None:
            inputs["decoder_input_ids"] = self._decoder_inputs(_targets(rows))
        known = {k: v for k, v in inputs.items() if self.forward is None or k in self.forward}
        return known or dict(itertools.islice(inputs.items(), 1))  # the input of another name

    def lengths(self, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """Return the token counts of each row; rows with equal counts need no padding.

        They are all () without texts, and where texts are padded to one length.
        """
        lengths: list[tuple[int, ...]] = [()] * len(rows)
        if self.tokenizer is None or self.padded:
            return lengths
        if self.sounds is None and rows[0].text is not None:
            lengths = _append_lengths(lengths, self._ids(*_texts(rows)))
        if self.decoder_start is not None:
            lengths = _append_lengths(lengths, self._ids(_targets(rows)))
        return lengths

    def _ids(self, texts: list[str], pairs: list[str] | None = None, **padding: Any) -> Any:
        options = {"truncation": True, "max_length": self.max_length, **padding}
        if not self.special:
            options["add_special_tokens"] = False
        return processed("tokenizer", self.tokenizer, texts, pairs, **options)

    def _tokens(
        self, texts: list[str], pairs: list[str] | None = None
    ) -> Mapping[str, torch.Tensor]:
        padding = "max_length" if self.padded else True
        return dict(self._ids(texts, pairs, padding=padding, return_tensors="pt"))

    def _sounds(self, rows: Sequence[Row]) -> Mapping[str, torch.Tensor]:
        rate = self.sounds.sampling_rate
        waves = []
        for row in rows:
            wave, own_rate = read_sound(row.sound)
            if own_rate != rate:
                raise DataError(
                    f"{row} has {own_rate} Hz, the model takes {rate}; resample it first"
                )
            waves.append(wave)
        raw = "input_values" in self.sounds.model_input_names  # spectra have a fixed length
        options: dict[str, Any] = {"padding": True} if raw else {}
        options |= {"sampling_rate": rate, "return_tensors": "pt"}
        return dict(processed("feature extractor", self.sounds, waves, **options))

    def _decoder_inputs(self, texts: list[str]) -> torch.Tensor:
        """Return the decoder's input: the start token, and the text without its last token."""
        assert self.decoder_start is not None
        start = torch.full((len(texts), 1), self.decoder_start)
        if self.tokenizer is None or not any(texts):
            return start
        return torch.cat([start, self._tokens(texts)["input_ids"][:, :-1]], 1)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        """Dynamic dimensions of the inputs."""
        lengths: dict[str, str | None] = {}
        if self.images is not None:
            lengths |= {"pixel_values": None, "pixel_mask": None}
        if self.tokenizer is not None and self.sounds is None:
            length = None if self.padded else "sequence"
            lengths |= dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), length)
        if self.sounds is not None:
            lengths |= {"input_features": None, "input_values": "samples"}
            lengths |= {"attention_mask": "samples"}
        if self.decoder_start is not None:
            lengths["decoder_input_ids"] = None if self.padded else "decoder_sequence"
        return {
            name: {0: "batch"} if length is None else {0: "batch", 1: length}
            for name, length in lengths.items()
        }


def render_conversations(rows: Sequence[Row], tokenizer: Any, folder: Path | None) -> list[Row]:
    """Return rows whose texts are their conversations in the tokenizer's chat template.

    Raises:
        DataError: the tokenizer has no template, or it refuses a conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            f"the data has conversations, and the tokenizer in {folder} has no chat template",
            DataEdit("give texts"),
            Argument("--processor", text="give a folder whose tokenizer has one with {}"),
        )
    rendered = []
    for row in rows:
        refused = f"the chat template in {folder} refuses a conversation ({str(row)[:60]!r})"
        with errors_as(DataError, refused):  # templates raise what they like
            text = tokenizer.apply_chat_template(list(row.messages), tokenize=False)
        rendered.append(replace(row, text=text))
    return rendered


def _texts(rows: Sequence[Row]) -> tuple[list[str], list[str] | None]:
    pairs = [r.pair or "" for r in rows] if rows[0].pair is not None else None
    return [r.text or "" for r in rows], pairs


def _targets(rows: Sequence[Row]) -> list[str]:
    """Return the texts that a decoder has to produce."""
    return [r.target or r.text or "" for r in rows]


def _append_lengths(lengths: list[tuple[int, ...]], tokens: Any) -> list[tuple[int, ...]]:
    """Append token counts; a text without tokens is padded to the shortest one."""
    more = [len(ids) for ids in tokens["input_ids"]]
    least = min(filter(None, more), default=0)
    return [(*a, max(b, least)) for a, b in zip(lengths, more, strict=True)]


_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""Decoders of images, by what a file contains: others start programs (Ghostscript for EPS)."""


def _check_file(file: Any) -> None:
    """Refuse a pipe or a device, which reading may never end, and what is no picture or sound."""
    if is_special_file(file):
        raise DataError(f"{file} is a pipe or a device", DataEdit("remove it from the data"))
    check_download(file, DataError)


_DEEP = ("I", "F")
"""First letters of modes (PIL) whose values are integers of 16 or 32 bits, or floats."""


def read_image(image: Any, in_8_bits: bool = True) -> Any:
    """Return an image (PIL) in RGB from a path, or from a decoded image of a dataset.

    Args:
        image: path or image.
        in_8_bits: whether values of more bits are refused; else the image is returned as it is
            stored.

    Raises:
        DataError: the file cannot be decoded, or values do not fit into 8 bits.
    """
    pil = require("PIL.Image", "reading images", DataError)
    if not isinstance(image, str | Path):
        return _in_rgb(pil, image, "an image", in_8_bits)
    _check_file(image)
    failed = f"{image} cannot be read as an image"  # decoders raise anything for damaged files
    with errors_as(DataError, failed, DOWNLOAD), pil.open(image, formats=_FORMATS) as opened:
        return _in_rgb(pil, opened, str(image), in_8_bits)


def _in_rgb(pil: Any, image: Any, name: str, in_8_bits: bool) -> Any:
    """Return an image in RGB. Of more than 8 bits, Pillow clips the values."""
    if not image.mode.startswith(_DEEP):
        return image.convert("RGB")
    if not in_8_bits:
        return image.copy()
    values = np.asarray(image)
    with np.errstate(invalid="ignore"):
        codes = values.clip(0, 255).astype(np.uint8)
    if not np.array_equal(codes, values):
        raise DataError(
            f"{name} has values from {values.min():.6g} to {values.max():.6g} (mode {image.mode}), "
            "and images of 8 bits have whole ones from 0 to 255",
            Argument("--transform", text="pass {}, a function that takes the image as it is"),
            DataEdit("convert the images to 8 bits"),
        )
    return pil.fromarray(codes).convert("RGB")


def read_sound(sound: Any) -> tuple[Array, int]:
    """Return the waveform (float32 [samples], channels averaged) and its rate in Hz.

    Raises:
        DataError: the file cannot be decoded.
    """
    if isinstance(sound, Mapping):  # as `datasets` decodes it
        return np.asarray(sound["array"], np.float32), int(sound["sampling_rate"])
    library = require("soundfile", "reading sound", DataError)
    _check_file(sound)
    with errors_as(DataError, f"{sound} cannot be read as sound", DOWNLOAD):
        wave, rate = library.read(str(sound), dtype="float32", always_2d=True)
    return wave.mean(1), int(rate)


def forward_names(model: Any) -> frozenset[str] | None:
    """Return the parameter names of a model's forward; None if it has only *args or **kwargs."""
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(uncompiled(model).forward).parameters.values()
    return frozenset(p.name for p in parameters if p.kind not in variadic) or None
