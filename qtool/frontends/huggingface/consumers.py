"""The libraries that load the folder of a model: which models they load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtool.core.argument_names import argument
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import DecoderPart, EncoderPart, MergedPart
from qtool.frontends.huggingface.folder_layout import GENAI, JS, OPTIMUM, SENTENCES
from qtool.frontends.huggingface.library_models import (
    GENAI_DECODERS,
    JS_TYPES,
    genai_type,
    optimum_cache,
)

FEATURES, CLASSES, TEXT = "feature-extraction", "text-classification", "text-generation"
WRITING, SPEECH = "text2text-generation", "automatic-speech-recognition"

_TASKS: Mapping[str, tuple[str, str]] = {
    "ForCausalLM": (TEXT, "ORTModelForCausalLM"),
    "LMHeadModel": (TEXT, "ORTModelForCausalLM"),
    "ForSequenceClassification": (CLASSES, "ORTModelForSequenceClassification"),
    "ForTokenClassification": ("token-classification", "ORTModelForTokenClassification"),
    "ForQuestionAnswering": ("question-answering", "ORTModelForQuestionAnswering"),
    "ForMaskedLM": ("fill-mask", "ORTModelForMaskedLM"),
    "ForMultipleChoice": ("multiple-choice", "ORTModelForMultipleChoice"),
    "ForImageClassification": ("image-classification", "ORTModelForImageClassification"),
    "ForSemanticSegmentation": ("image-segmentation", "ORTModelForSemanticSegmentation"),
    "ForObjectDetection": ("object-detection", ""),
    "ForAudioClassification": ("audio-classification", "ORTModelForAudioClassification"),
    "ForCTC": (SPEECH, "ORTModelForCTC"),
    "TextModelWithProjection": ("text-feature-extraction", ""),
    "VisionModelWithProjection": ("image-feature-extraction", ""),
    "TextModel": ("text-feature-extraction", ""),
    "VisionModel": ("image-feature-extraction", ""),
    "ForConditionalGeneration": (WRITING, "ORTModelForSeq2SeqLM"),
}
"""Ending of a class of transformers -> task of a pipeline, class of Optimum ("" for none)."""
_JS_TOWERS = (
    "CLIPTextModelWithProjection",
    "CLIPVisionModelWithProjection",
    "SiglipTextModel",
    "SiglipVisionModel",
)
"""Towers that transformers.js loads by the name of their class, and not by a pipeline."""
_FEATURES = FEATURES, "ORTModelForFeatureExtraction"
_SPEECH = SPEECH, "ORTModelForSpeechSeq2Seq"
_PART_TYPES = DecoderWithCache | EncoderPart | DecoderPart
_PARTS = (
    "one part of an encoder-decoder model is no model to it; name the task with -with-past "
    "instead of -encoder or -decoder"
)


def _whole(model: Any) -> Any:
    wrapped = isinstance(model, _PART_TYPES)
    return model.model if wrapped else model


def _row(model: Any) -> tuple[str, str]:
    """Return task and class of Optimum."""
    whole = _whole(model)
    name = type(whole).__name__
    row = next((row for ending, row in _TASKS.items() if name.endswith(ending)), _FEATURES)
    hears = getattr(whole, "main_input_name", "") in ("input_features", "input_values")
    return _SPEECH if row[0] == WRITING and hears else row


def is_whisper(model: Any) -> bool:
    """Return whether a model is a part of Whisper, with the names that libraries know."""
    return isinstance(model, MergedPart) and _whole(model).config.model_type == "whisper"


def _reads_text(model: Any) -> bool:
    return getattr(_whole(model), "main_input_name", "") == "input_ids"


def refusal(consumer: str, model: Any) -> str | None:
    """Return why a library does not load the folder of a model; None if it does.

    Args:
        consumer: name of the library.
        model: as it was loaded.
    """
    if isinstance(model, EncoderPart | DecoderPart) and not isinstance(model, MergedPart):
        return _PARTS
    task, ort_class = _row(model)
    cached = isinstance(model, DecoderWithCache)
    with_past = argument("--task", "text-generation-with-past")
    if consumer == GENAI and not (cached or is_whisper(model)):
        return f"it loads Whisper and language models with a KV cache: {with_past}"
    if consumer == JS and task == TEXT and not cached:
        return f"it loads language models with a KV cache: {with_past}"
    if consumer == OPTIMUM and not ort_class:
        return f"it has no class for {task}"
    if consumer == SENTENCES and not (_reads_text(model) and task in (FEATURES, CLASSES)):
        return f"it loads text encoders and classifiers, not models for {task}"
    if consumer == JS and type(model).__name__ in _JS_TOWERS:
        return None
    kind = str(_whole(model).config.model_type)
    types = _types(consumer, task)
    known = genai_type(kind) if consumer == GENAI else kind
    if types is not None and known not in types:
        return f"it knows no models of the type {kind} for {task}"
    return _cache_refusal(consumer, model) if cached else None


def _types(consumer: str, task: str) -> frozenset[str] | None:
    """Return the types of models that a library loads for a task; None: any."""
    if consumer == GENAI:
        return GENAI_DECODERS if task == TEXT else None
    if consumer == JS and task in (FEATURES, *JS_TYPES):
        return JS_TYPES.get(task)
    return frozenset() if consumer == JS else None


def _cache_refusal(consumer: str, model: DecoderWithCache) -> str | None:
    """Return why a library makes another KV cache than the file of a decoder takes; None if not."""
    if consumer != OPTIMUM:
        return None
    theirs, own = optimum_cache(model.config), model.cache_size()
    if theirs == own:
        return None
    return (
        f"it makes a KV cache of {theirs[0]} heads of {theirs[1]} features for the type "
        f"{model.config.model_type}, the model has {own[0]} of {own[1]}"
    )
