"""Which encoder fits rows: a transform that the user names, or what lies in the model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qtool.core.errors import DataError, describe
from qtool.core.graph.process_lock import silence_logging
from qtool.core.paths import is_dir
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
    """The encoder for rows like this one.

    Raises:
        DataError: nothing says how they become tensors.
    """
    if transform is not None:
        if row.kinds == ("text",):
            raise DataError("a transform is for images and sound, not for texts; leave it out")
        return TransformCollator(_transform(transform, model), transform)
    if folder is None and (timm := _timm(model)) is not None and row.kinds[:1] == ("image",):
        return TransformCollator(timm, "timm's transform")
    if folder is None or not is_dir(folder):
        raise DataError(
            f"nothing says how {_PLURAL[row.kinds[0]]} become tensors; {_REMEDY[row.kinds[0]]}"
        )
    if (folder / "config.json").is_file() and "architecture" in read_config(folder):
        return TransformCollator(_transform("timm", model), "timm's transform")
    return _processed(row, folder, model, max_length, padded)


_TOKENS = {"input_ids", "decoder_input_ids"}
_PLURAL = {"image": "images", "sound": "sounds", "text": "texts"}
_REMEDY = {
    "image": "give --transform (torchvision's weights, timm, or package.module:function)",
    "sound": "give --processor, a folder with a feature extractor, or --transform",
    "text": "give --processor, a folder with a tokenizer",
}


def _transform(name: str, model: Any) -> Any:
    if name == "timm":
        found = _timm(model)
        if found is None:
            raise DataError("the transform 'timm' is for a model of timm, and this is none")
        return found
    if is_call(name):
        return evaluate_call(name, DataError)
    if ":" in name:
        found = import_object(name, DataError)
        if not callable(found):
            raise DataError(f"{name} is a {type(found).__name__}, not a function")
        return found
    models = require("torchvision.models", f"the transform {name}", DataError)
    try:
        return models.get_weight(name).transforms()
    except Exception as error:
        raise DataError(
            f"'{name}' names no weights of torchvision ({describe(error)}); write it as in "
            "ResNet18_Weights.DEFAULT, or give package.module:function"
        ) from error


def _timm(model: Any) -> Any | None:
    """The transform of a model of timm: evaluation's, as its configuration says."""
    if not isinstance(getattr(model, "pretrained_cfg", None), dict):
        return None
    timm = require("timm.data", "the model's own transform", DataError)
    return timm.create_transform(**timm.resolve_model_data_config(model), is_training=False)


def _processed(
    row: Row, folder: Path, model: Any, max_length: int | None, padded: bool
) -> ProcessorCollator:
    library = require("transformers", f"what lies in {folder}", DataError)
    config = read_config(folder) if is_model_folder(folder) else {}
    forward = None if model is None else forward_names(model)
    # captions beside images or sound are for models that take tokens; others do without
    takes_text = row.kinds == ("text",) or forward is None or bool(forward & _TOKENS)
    needs_text = takes_text and (row.text is not None or row.target is not None)
    tokenizer = _loaded(library.AutoTokenizer, folder, "tokenizer") if needs_text else None
    if tokenizer is not None:
        _check_vocabulary(tokenizer, model, folder)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
    images = sounds = None
    if row.image is not None:
        images = _loaded(library.AutoImageProcessor, folder, "image processor")
    if row.sound is not None:
        sounds = _loaded(library.AutoFeatureExtractor, folder, "feature extractor")
    longest = getattr(tokenizer, "model_max_length", MAX_LENGTH)
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    return ProcessorCollator(
        tokenizer,
        images,
        sounds,
        max_length or min(longest, MAX_LENGTH),
        padded,
        start if config.get("is_encoder_decoder") else None,
        forward,
    )


def _loaded(loader: Any, folder: Path, what: str) -> Any:
    try:
        with silence_logging():
            return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{folder} holds no {what} that can be loaded ({describe(error).splitlines()[0]}); "
            "save it there with save_pretrained, or name another folder with --processor"
        ) from error


def _check_vocabulary(tokenizer: Any, model: Any, folder: Path) -> None:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(size, int) and len(tokenizer) > size:
        raise DataError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, the model takes {size}; "
            "they do not belong together"
        )
