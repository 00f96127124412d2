"""Loads model folders of transformers and timm: config.json and safetensors.

It runs no code of a folder, unpickles nothing and downloads nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from qtool.core import plugins
from qtool.core.downloads import DOWNLOAD, check_download, hub_id
from qtool.core.errors import CaptureError, QtoolError
from qtool.core.graph.finite_outputs import check_weights
from qtool.core.log import log_note
from qtool.core.paths import is_file
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import CallEdit, Omission, OtherFile
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import EncoderDecoder, part_for_task
from qtool.frontends.huggingface.foreign_weights import coded, dequantized, missing_weights
from qtool.frontends.huggingface.returned_cache import disable_cache
from qtool.frontends.huggingface.safetensors_files import check_indices, check_layers
from qtool.frontends.huggingface.towers import TOWERS, tower_class
from qtool.frontends.huggingface.unused_weights import check_unused_weights
from qtool.frontends.optional_packages import require
from qtool.frontends.own_models import BOTH_PARTS
from qtool.frontends.torch.exported_program import first_line

_SPEECH, _WRITING = "automatic-speech-recognition", "text2text-generation"
_PARTS = ("", "-decoder", "-encoder", "-with-past", "-with-past-decoder", "-with-past-encoder")
TASKS: Mapping[str, str] = {
    "audio-classification": "AutoModelForAudioClassification",
    **{f"{_SPEECH}{part}": "AutoModelForSpeechSeq2Seq" for part in _PARTS},
    "ctc": "AutoModelForCTC",
    "depth-estimation": "AutoModelForDepthEstimation",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "image-segmentation": "AutoModelForImageSegmentation",
    "image-text-to-text": "AutoModelForImageTextToText",
    "multiple-choice": "AutoModelForMultipleChoice",
    "object-detection": "AutoModelForObjectDetection",
    "question-answering": "AutoModelForQuestionAnswering",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "text-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
    "text-generation-with-past": "AutoModelForCausalLM",
    **{f"{_WRITING}{part}": "AutoModelForSeq2SeqLM" for part in _PARTS},
    "token-classification": "AutoModelForTokenClassification",
    "video-classification": "AutoModelForVideoClassification",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
}
"""Task -> class of transformers that loads it."""

WITH_PAST = "text-generation-with-past"
"""The task whose model has its KV cache as inputs and outputs."""

_SILENT = (logging.CRITICAL, "torch", "transformers")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


EXPERTS = "experts_implementation"
"""How transformers computes experts."""


def is_model_folder(path: Path) -> bool:
    """Return whether the folder has a config.json."""
    return is_file(path / "config.json")


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the contents of config.json.

    Raises:
        CaptureError: there is none, or it cannot be read.
    """
    file = path / "config.json"
    if is_file(path / "saved_model.pb"):
        raise CaptureError(
            f"{path} is a SavedModel of TensorFlow",
            OtherFile("convert it to ONNX with tf2onnx, and give the .onnx file"),
        )
    if not is_file(file):
        raise CaptureError(
            f"{path} holds no config.json", OtherFile("give the folder that save_pretrained wrote")
        )
    check_download(file, CaptureError)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{file} cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise CaptureError(f"{file} holds a {type(config).__name__}, not a configuration")
    return config


def load_folder(path: Path, task: str | None = None, attention: str = "fused") -> nn.Module:
    """Load a folder of transformers (`model_type`) or timm (`architecture`) in eval mode.

    `attention` is that of `load_model`.

    Raises:
        CaptureError: there are no weights in safetensors, or not those of the task; the model needs
            code from the folder; its package is missing.
    """
    config = read_config(path)
    if name := hub_id(path):
        log_note(f"{name} is read from the Hugging Face cache, revision {path.name}")
    if not list(path.glob("*.safetensors")):
        name = str(next(iter(config.get("architectures") or []), "AutoModel"))
        again = f"{name}.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        raise CaptureError(
            f"{path} has no weights in safetensors",
            OtherFile(f"write them with transformers: {again}")
            if list(path.glob("*.bin"))
            else OtherFile("give the folder that save_pretrained wrote"),
        )
    for file in (*path.glob("*.safetensors"), *path.glob("*.json")):
        check_download(file, CaptureError)
    is_timm = "architecture" in config and "model_type" not in config
    if is_timm and task is not None:
        raise CaptureError(f"{path} is a timm folder, which has no tasks", Omission("--task"))
    check_indices(path)
    check_layers(path, config)
    try:
        model = _timm(path, config) if is_timm else _transformers(path, config, task)
        with silence_logging(*_SILENT):
            model.eval()
            check_weights(model)
            if isinstance(model, DecoderWithCache) and attention == "fused":
                model.fuse_attention()
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        cause = error.__cause__ or error
        edits = (DOWNLOAD,) if isinstance(cause, SafetensorError) else ()
        raise CaptureError(f"{path} cannot be loaded: {first_line(cause)}", *edits) from error
    return model


def _timm(path: Path, config: Mapping[str, Any]) -> nn.Module:
    timm = require("timm", f"the model in {path}", CaptureError)
    name, options = timm_arguments(timm, path, config)
    weights = {"pretrained": False, "checkpoint_path": str(path / "model.safetensors")}
    with silence_logging(*_SILENT):
        model: nn.Module = timm.create_model(name, **{**options, **weights})
    return model


def timm_arguments(timm: Any, path: Path, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of timm's `create_model`, without those of the weights."""
    name = str(config["architecture"])
    if not timm.is_model(name):  # it may be an address to download from
        raise CaptureError(f"timm {timm.__version__} does not know '{name}', the model in {path}")
    options = {k: v for k, v in config.items() if k in ("num_classes", "global_pool")}
    return name, options | config.get("model_args", {})


def _transformers(path: Path, config: Mapping[str, Any], task: str | None) -> nn.Module:
    if (codes := coded(path, config)) is not None:
        with silence_logging(*_SILENT):
            model = plugins.function("load_checkpoint")(path, config, codes, task)
    else:
        model = _with_float_weights(path, config, task)
    loaded: nn.Module = disable_cache(model).float()
    if (part := part_for_task(task)) is not None:
        return part(loaded)
    if task == WITH_PAST:
        return DecoderWithCache(loaded)
    return EncoderDecoder(loaded) if task in BOTH_PARTS else loaded


def _with_float_weights(path: Path, config: Mapping[str, Any], task: str | None) -> Any:
    library = require("transformers", f"the model in {path}", CaptureError)
    loader = model_class(library, path, config, task)
    options: dict[str, Any] = {"use_safetensors": True, **_options(loader)}
    options |= {"output_loading_info": True, **experts_options(config)}
    if task in TOWERS and "projection_dim" in config:
        options["projection_dim"] = config["projection_dim"]
    with silence_logging(*_SILENT):  # which drops notes of qtool, too
        model, loading = loader.from_pretrained(path, **options)
        if bare := no_pooler_options(type(model), loading["missing_keys"]):
            model, loading = loader.from_pretrained(path, **options, **bare)
    if missing := sorted(loading["missing_keys"]):
        raise missing_weights(path, model, missing, loading["unexpected_keys"])
    check_unused_weights(model, loading["unexpected_keys"], path)
    if stored := dequantized(config):
        log_note(f"the weights of {path} are stored in {stored}; its rounding is part of the model")
    return model


def experts_options(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the option that makes a mixture of experts traceable."""
    return {EXPERTS: "batched_mm"} if any("experts" in k for k in config) else {}


def no_pooler_options(kind: type[nn.Module], missing: Collection[str]) -> Mapping[str, bool]:
    """Return the options that leave out the pooler if only its weights are missing.

    Folders of sentence encoders, and of models with a different head, have no pooler.
    """
    only_pooler = bool(missing) and all("pooler" in name.split(".") for name in missing)
    option = "add_pooling_layer"
    return {option: False} if only_pooler and option in signature(kind).parameters else {}


def _options(loader: Any) -> Mapping[str, Any]:
    return _LOCAL if loader.__name__.startswith("Auto") else {"local_files_only": True}


def model_class(library: Any, path: Path, config: Mapping[str, Any], task: str | None) -> Any:
    """Return the class of transformers for a folder: by task, or the one its weights belong to.

    Raises:
        CaptureError: the task is unknown, or the model needs code from the folder.
    """
    if task is not None:
        if task in TOWERS:
            return tower_class(library, config, task)
        if task not in TASKS:
            tasks = ", ".join(sorted((*TASKS, *TOWERS)))
            raise CaptureError(f"unknown task '{task}'; there are: {tasks}")
        if config.get("auto_map") and config.get("model_type") not in library.CONFIG_MAPPING:
            raise _own_code(library, path, str(config.get("model_type")))
        return getattr(library, TASKS[task])
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        return library.AutoModel
    name = str(names[0])
    loader = getattr(library, name, None) if name.isidentifier() else None
    known = isinstance(loader, type) and issubclass(loader, library.PreTrainedModel)
    if not known or config.get("auto_map"):
        raise _own_code(library, path, name)
    return loader


def _own_code(library: Any, path: Path, name: str) -> CaptureError:
    return CaptureError(
        f"{path} needs code that is not part of transformers {library.__version__} "
        f"({name}), and qtool runs no code from a folder",
        CallEdit("give package.module:factory that returns the model"),
    )
