"""Folders as transformers and timm write them: config.json and safetensors. No code is run from
them, nothing is unpickled, nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from qtool.core.errors import CaptureError, QtoolError
from qtool.core.graph.process_lock import silence_logging
from qtool.core.paths import is_file
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import part_for_task
from qtool.frontends.optional_packages import require
from qtool.frontends.torch.exported_program import first_line

TASKS: Mapping[str, str] = {
    "audio-classification": "AutoModelForAudioClassification",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
    "automatic-speech-recognition-decoder": "AutoModelForSpeechSeq2Seq",
    "automatic-speech-recognition-encoder": "AutoModelForSpeechSeq2Seq",
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
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "text2text-generation-decoder": "AutoModelForSeq2SeqLM",
    "text2text-generation-encoder": "AutoModelForSeq2SeqLM",
    "token-classification": "AutoModelForTokenClassification",
    "video-classification": "AutoModelForVideoClassification",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
}
"""Task -> the class of transformers that loads it."""

WITH_PAST = "text-generation-with-past"
"""The task whose model takes its cache of keys and values and gives it back."""

_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def is_model_folder(path: Path) -> bool:
    return is_file(path / "config.json")


def read_config(path: Path) -> Mapping[str, Any]:
    """What config.json says.

    Raises:
        CaptureError: there is none, or it cannot be read.
    """
    file = path / "config.json"
    if not is_file(file):
        raise CaptureError(
            f"{path} holds no config.json; give the folder that save_pretrained wrote"
        )
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{file} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise CaptureError(f"{file} holds a {type(found).__name__}, not a configuration")
    return found


def load_folder(path: Path, task: str | None = None) -> nn.Module:
    """The model of a folder of transformers (`model_type`) or timm (`architecture`), in eval mode.

    Raises:
        CaptureError: it has no weights in safetensors, or not those of the task; it needs code of
            its own; its package is missing.
    """
    config = read_config(path)
    if not list(path.glob("*.safetensors")):
        raise CaptureError(
            f"{path} holds no weights in safetensors; save the model so (save_pretrained does)"
        )
    is_timm = "architecture" in config and "model_type" not in config
    if is_timm and task is not None:
        raise CaptureError(f"{path} is a folder of timm, which has no tasks; leave out --task")
    try:
        with silence_logging():
            return (_timm(path, config) if is_timm else _transformers(path, config, task)).eval()
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{path} cannot be loaded: {first_line(error)}") from error


def _timm(path: Path, config: Mapping[str, Any]) -> nn.Module:
    timm = require("timm", f"the model in {path}", CaptureError)
    name, given = timm_arguments(timm, path, config)
    weights = {"pretrained": False, "checkpoint_path": str(path / "model.safetensors")}
    model: nn.Module = timm.create_model(name, **{**given, **weights})
    return model


def timm_arguments(timm: Any, path: Path, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of timm's `create_model`, but for the weights."""
    name = str(config["architecture"])
    if not timm.is_model(name):  # it may be the address of another model, to be fetched
        raise CaptureError(f"{path} is of '{name}', which timm {timm.__version__} does not know")
    given = {k: v for k, v in config.items() if k in ("num_classes", "global_pool")}
    return name, given | config.get("model_args", {})


def _transformers(path: Path, config: Mapping[str, Any], task: str | None) -> nn.Module:
    library = require("transformers", f"the model in {path}", CaptureError)
    loader = model_class(library, path, config, task)
    given = {"use_safetensors": True, "output_loading_info": True, **_options(loader)}
    given |= _experts(config)
    model, loading = loader.from_pretrained(path, **given)
    if bare := no_pooler_options(type(model), loading["missing_keys"]):
        model, loading = loader.from_pretrained(path, **given, **bare)
    if missing := sorted(loading["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CaptureError(
            f"{path} has no weights for {type(model).__name__} (missing: {missing[0]}{more}); "
            "choose the --task that it was trained for"
        )
    found: nn.Module = disable_cache(model).float()
    if (half := part_for_task(task)) is not None:
        return half(found)
    return DecoderWithCache(found) if task == WITH_PAST else found


def _experts(config: Mapping[str, Any]) -> Mapping[str, str]:
    """How a mixture of experts is to compute, for there to be a graph of it."""
    return {"experts_implementation": "batched_mm"} if any("experts" in k for k in config) else {}


def no_pooler_options(kind: type[nn.Module], missing: Collection[str]) -> Mapping[str, bool]:
    """How a model is made without its pooler, where only that one's weights are missing: folders of
    encoders whose states others pool, or of models with a head of their own, have none."""
    alone = bool(missing) and all("pooler" in name.split(".") for name in missing)
    asked = "add_pooling_layer"
    return {asked: False} if alone and asked in signature(kind).parameters else {}


def disable_cache(model: nn.Module) -> nn.Module:
    """The model, which returns no cache for a next step: a graph gives tensors alone."""
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False
    return model


def _options(loader: Any) -> Mapping[str, Any]:
    return _LOCAL if loader.__name__.startswith("Auto") else {"local_files_only": True}


def model_class(library: Any, path: Path, config: Mapping[str, Any], task: str | None) -> Any:
    """The class of transformers for the model of a folder, by default that of its weights.

    Raises:
        CaptureError: there is no such task, or the model needs code of its own.
    """
    if task is not None:
        if task not in TASKS:
            raise CaptureError(f"unknown task '{task}'; there are: {', '.join(TASKS)}")
        return getattr(library, TASKS[task])
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        return library.AutoModel
    name = str(names[0])
    found = getattr(library, name, None)
    if found is None or config.get("auto_map"):
        raise CaptureError(
            f"{path} needs code that is not part of transformers {library.__version__} ({name}), "
            "and code from a folder is never run; give package.module:factory that returns the "
            "model"
        )
    return found
