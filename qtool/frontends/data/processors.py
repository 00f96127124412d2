"""Chooses the collator for rows: the user's transform, or the model folder's processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from qtool.core.downloads import check_download
from qtool.core.errors import DataError, describe
from qtool.core.paths import is_dir
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import Argument, CallEdit, DataEdit, OtherFile
from qtool.core.user_code import attribute
from qtool.frontends.data.collators import (
    MAX_LENGTH,
    Collator,
    ProcessorCollator,
    TransformCollator,
    forward_names,
)
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.model_folder import is_model_folder, read_config
from qtool.frontends.named_objects import evaluate_call, import_object, is_call
from qtool.frontends.optional_packages import require


def make_collator(
    row: Row,
    folder: Path | None,
    model: Any,
    transform: str | None,
    max_length: int | None,
    padded: bool,
) -> Collator:
    """Return the collator for rows like this one.

    Args:
        row: the first row.
        folder: has a tokenizer, image processor or feature extractor.
        model: the model, if it is loaded.
        transform: as for `load_data`.
        max_length: as for `load_data`.
        padded: as for `load_data`.

    Raises:
        DataError: there is no preprocessing for such rows.
    """
    if transform is not None:
        is_code = ":" in transform or is_call(transform)
        return TransformCollator(_transform(transform, model), transform, in_8_bits=not is_code)
    if folder is None and (timm := _timm(model)) is not None and row.kinds[:1] == ("image",):
        return TransformCollator(timm, "timm's transform", in_8_bits=True)
    if folder is None or not is_dir(folder):
        raise DataError(
            f"no preprocessing found for these {_PLURAL[row.kinds[0]]}",
            *_REMEDIES[row.kinds[0]],
        )
    if (folder / "config.json").is_file() and "architecture" in read_config(folder):
        return TransformCollator(_transform("timm", model), "timm's transform", in_8_bits=True)
    return _processed(row, folder, model, max_length, padded)


_TOKENS = {"input_ids", "decoder_input_ids"}
_PLURAL = {"image": "images", "sound": "sounds", "text": "texts"}


_TRANSFORM = "pass {} (torchvision's weights, timm, or package.module:function)"
_REMEDIES = {
    "image": [Argument("--transform", text=_TRANSFORM)],
    "sound": [
        Argument("--processor", text="pass {}, a folder with a feature extractor"),
        Argument("--transform", text="pass {}"),
    ],
    "text": [Argument("--processor", text="pass {}, a folder with a tokenizer")],
}
"""Kind of samples -> what to pass where they have no preprocessing."""


def _transform(name: str, model: Any) -> Any:
    if name == "timm":
        transform = _timm(model)
        if transform is None:
            raise DataError("the transform 'timm' is only for models of timm")
        return transform
    if is_call(name):
        return evaluate_call(name, DataError)
    if ":" in name:
        function = import_object(name, DataError)
        if not callable(function):
            raise DataError(f"{name} is a {type(function).__name__}, not a function")
        return function
    models = require("torchvision.models", f"the transform {name}", DataError)
    try:
        return models.get_weight(name).transforms()
    except Exception as error:
        raise DataError(
            f"torchvision has no weights '{name}' ({describe(error)})",
            CallEdit("write them like ResNet18_Weights.DEFAULT, or give package.module:function"),
        ) from error


def _timm(model: Any) -> Any | None:
    """Return the evaluation transform of a timm model, or None for another model."""
    if not isinstance(attribute(model, "pretrained_cfg"), dict):
        return None
    timm = require("timm.data", "the model's own transform", DataError)
    return timm.create_transform(**timm.resolve_model_data_config(model), is_training=False)


def _processed(
    row: Row, folder: Path, model: Any, max_length: int | None, padded: bool
) -> ProcessorCollator:
    library = require("transformers", f"the processor in {folder}", DataError)
    config = read_config(folder) if is_model_folder(folder) else {}
    forward = None if model is None else forward_names(model)
    # captions of images or sounds are only for models that take tokens
    takes_text = row.kinds == ("text",) or forward is None or bool(forward & _TOKENS)
    needs_text = takes_text and (row.text is not None or row.target is not None)
    tokenizer = None
    if needs_text:
        tokenizer = load_tokenizer(folder)
        _check_vocabulary(tokenizer, model, folder)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
    images = sounds = None
    if row.image is not None:
        _check_processor_files(folder, "images", "image processor")
        images = _loaded(library.AutoImageProcessor, folder, "image processor")
    if row.sound is not None:
        _check_processor_files(folder, "sounds", "feature extractor")
        sounds = _loaded(library.AutoFeatureExtractor, folder, "feature extractor")
    longest = getattr(tokenizer, "model_max_length", MAX_LENGTH)
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    _check_number("model_max_length", longest, folder)
    if start is not None:
        _check_number("decoder_start_token_id", start, folder)
    return ProcessorCollator(
        tokenizer,
        images,
        sounds,
        _text_length(max_length, longest, model if tokenizer is not None else None),
        padded,
        start if config.get("is_encoder_decoder") else None,
        forward,
    )


def _text_length(chosen: int | None, longest: int, model: Any) -> int:
    """Return the most tokens of a text: the user's choice, else what tokenizer and model allow."""
    limit = text_positions(model)
    if chosen is None:
        return min(longest, MAX_LENGTH, limit or MAX_LENGTH)
    if limit is not None and chosen > limit:
        raise DataError(
            f"texts of {chosen} tokens are longer than the {limit} positions of the model",
            Argument("--max-length", limit),
        )
    return chosen


def _check_number(name: str, value: object, folder: Path) -> None:
    """Raise DataError for a value of the configurations in a folder that is no whole number."""
    if not isinstance(value, int):
        raise DataError(f"{name} in {folder} is {value!r:.40}, no whole number; correct it there")


_ANOTHER_FOLDER = Argument("--processor", text="give another folder with {}")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a local folder.

    Raises:
        DataError: there is none, or it cannot be loaded.
    """
    library = require("transformers", f"the tokenizer in {folder}", DataError)
    _check_tokenizer_files(folder)
    return _loaded(library.AutoTokenizer, folder, "tokenizer")


def _loaded(loader: Any, folder: Path, what: str) -> Any:
    try:
        with silence_logging():
            return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"cannot load a {what} from {folder} ({describe(error).splitlines()[0]})",
            OtherFile("save it there with save_pretrained"),
            _ANOTHER_FOLDER,
        ) from error


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "*.model", "vocab.*", "*vocab*", "*.spm")
"""Patterns of the files that hold a vocabulary; without one transformers makes an empty tokenizer,
which knows no word."""


def _check_tokenizer_files(folder: Path) -> None:
    files = {p for pattern in _TOKENIZER_FILES for p in folder.glob(pattern)}
    for file in sorted(files):
        check_download(file, DataError)
    config = read_config(folder) if is_model_folder(folder) else {}
    bytewise = config.get("model_type") in _BYTEWISE  # it takes bytes or characters
    if not files and not list(folder.glob("*tokeniz*.py")) and not bytewise:
        raise DataError(
            f"{folder} has no tokenizer (no tokenizer.json, vocab.txt or tokenizer.model)",
            OtherFile("save it there with tokenizer.save_pretrained"),
            _ANOTHER_FOLDER,
        )


def _check_processor_files(folder: Path, kind: str, what: str) -> None:
    if not any((folder / f"{name}.json").is_file() for name in _PROCESSORS):
        raise DataError(
            f"{folder} has no {what}, so its model may not take {kind}",
            DataEdit("give data of the kind that it takes"),
            Argument("--processor", text=f"a folder with the {what} with {{}}"),
        )


_PROCESSORS = ("preprocessor_config", "processor_config", "video_preprocessor_config")


_BYTEWISE = ("byt5", "canine", "perceiver")


def _check_vocabulary(tokenizer: Any, model: Any, folder: Path) -> None:
    size = attribute(model, "config", "vocab_size")
    if isinstance(size, int) and len(tokenizer) > size:
        raise DataError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, the model takes {size}",
            OtherFile("give the model's own tokenizer"),
        )


_TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Last names of the modules that hold learned positions, in models of transformers."""
_NOT_OF_TEXTS = ("vision", "visual", "image", "audio")


def text_positions(model: Any) -> int | None:
    """Return the most tokens of a text that a model takes; None where nothing limits them.

    A file with a KV cache has tables of rotary angles for the positions that the model was made
    for; learned positions end with their table. Other positions are computed for any length.
    """
    cached = attribute(model, "positions")
    limits = [cached] if isinstance(cached, int) and cached > 0 else []
    if isinstance(model, nn.Module):
        limits += [
            _rows(module)
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in _TABLES
            and isinstance(module, nn.Embedding)
            and not any(word in name for word in _NOT_OF_TEXTS)
        ]
    return min(limits, default=None)


def _rows(table: nn.Embedding) -> int:
    """Return the rows for tokens: BART's table begins with two others, RoBERTa's after padding."""
    offset = getattr(table, "offset", None)
    if offset is None:
        offset = 0 if table.padding_idx is None else table.padding_idx + 1
    return table.num_embeddings - int(offset)
