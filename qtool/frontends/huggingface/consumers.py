"""The libraries that load the folder of a model: which kinds of models they load.

Which types of a kind a library knows differs by its version, and it says so itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtool.core.argument_names import argument
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import DecoderPart, EncoderPart, MergedPart
from qtool.frontends.huggingface.folder_layout import GENAI, JS, OPTIMUM, SENTENCES

FEATURES, CLASSES, TEXT = "feature-extraction", "text-classification", "text-generation"
_TASKS: Mapping[str, str] = {
    "ForCausalLM": TEXT,
    "LMHeadModel": TEXT,
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForImageClassification": "image-classification",
    "ForSemanticSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "TextModelWithProjection": "text-feature-extraction",
    "VisionModelWithProjection": "image-feature-extraction",
    "TextModel": "text-feature-extraction",
    "VisionModel": "image-feature-extraction",
    "ForConditionalGeneration": "text2text-generation",
}
"""Ending of a class of transformers -> task of a pipeline."""
_NOT_OF_OPTIMUM = ("object-detection", "text-feature-extraction", "image-feature-extraction")
_PART_TYPES = DecoderWithCache | EncoderPart | DecoderPart
_PARTS = (
    "one part of an encoder-decoder model is no model to it; name the task with -with-past "
    "instead of -encoder or -decoder"
)


def _whole(model: Any) -> Any:
    wrapped = isinstance(model, _PART_TYPES)
    return model.model if wrapped else model


def is_whisper(model: Any) -> bool:
    """Return whether a model is a part of Whisper, with the names that libraries know."""
    return isinstance(model, MergedPart) and _whole(model).config.model_type == "whisper"


def refusal(consumer: str, model: Any) -> str | None:
    """Return why a library does not load the folder of such a model; None if it may.

    Args:
        consumer: name of the library.
        model: as it was loaded.
    """
    if isinstance(model, EncoderPart | DecoderPart) and not isinstance(model, MergedPart):
        return _PARTS
    name = type(_whole(model)).__name__
    task = next((each for ending, each in _TASKS.items() if name.endswith(ending)), FEATURES)
    cached = isinstance(model, DecoderWithCache)
    with_past = argument("--task", "text-generation-with-past")
    if consumer == GENAI and not (cached or is_whisper(model)):
        return f"it loads Whisper and language models with a KV cache: {with_past}"
    if consumer == JS and task == TEXT and not cached:
        return f"it loads language models with a KV cache: {with_past}"
    if consumer == OPTIMUM and task in _NOT_OF_OPTIMUM:
        return f"it has no class for {task}"
    reads_text = getattr(_whole(model), "main_input_name", "") == "input_ids"
    if consumer == SENTENCES and not (reads_text and task in (FEATURES, CLASSES)):
        return f"it loads text encoders and classifiers, not models for {task}"
    return None
