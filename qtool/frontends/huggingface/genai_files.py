"""The files that onnxruntime-genai needs next to those of the other libraries.

A decoder needs a configuration. For Whisper it wants the encoder to return the keys and values of
the cross-attention, which the decoder of the other libraries computes in its first call; its two
graphs share their weights with those files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnx.cross_attention import (
    ENCODED,
    STATES,
    CrossCache,
    cross_cache,
    write_cross_attention,
)
from qtool.backends.onnxruntime.session import session
from qtool.core.atomic import write_atomic
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache

CONFIG = "genai_config.json"
_DENSE = {"mixtral": "mistral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen3"}
"""Type of a mixture of experts -> the type with equal inputs and outputs; onnxruntime-genai, which
reads nothing else of a type of decoder, knows that one alone."""
_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def genai_config(model: DecoderWithCache, file: str) -> dict[str, Any]:
    """Return the onnxruntime-genai configuration of a decoder; greedy search by default.

    Args:
        model: the decoder.
        file: name of its ONNX file, in the folder of the configuration.
    """
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    ends = {key: _within(getattr(config, key, None), int(config.vocab_size)) for key in _ENDS}
    if ends["pad_token_id"] is None:
        last = ends["eos_token_id"]
        ends["pad_token_id"] = last[0] if isinstance(last, list) else last
    length = int(config.max_position_embeddings)
    decoder = {
        "filename": file,
        "head_size": int(width),
        "hidden_size": int(config.hidden_size),
        "num_attention_heads": heads,
        "num_hidden_layers": int(config.num_hidden_layers),
        "num_key_value_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": _DENSE.get(config.model_type, config.model_type),
            **{key: value for key, value in ends.items() if value is not None},
            "context_length": length,
            "vocab_size": int(config.vocab_size),
            "decoder": decoder,
        },
        "search": {
            "do_sample": False,
            "max_length": length,
            "past_present_share_buffer": model.fused,
        },
    }


def _within(tokens: Any, size: int) -> Any:
    """Return tokens of a vocabulary of this size; None for others, with which genai loads nothing.

    A model with another vocabulary than its family's keeps their numbers in its configuration.
    """
    if isinstance(tokens, list):
        return [token for token in tokens if token < size] or None
    return tokens if tokens is not None and tokens < size else None


AUDIO, TEXT = "genai_audio.onnx", "genai_text.onnx"
"""Encoder and decoder; Optimum would take a file with "encoder" or "decoder" in its name."""
PROCESSOR = "audio_processor_config.json"
_EXTRACTOR = "preprocessor_config.json"
_SESSION = {"log_id": "onnxruntime-genai", "provider_options": []}
NamedArrays = dict[str, Array]


def write_speech_files(config: Any, folder: Path, encoder: Path, decoder: Path) -> None:
    """Write graphs and configurations for onnxruntime-genai.

    Args:
        config: the configuration of the model in transformers.
        folder: where to write; it has the model's preprocessor_config.json. Encoder and decoder are
            in it or in a folder below.
        encoder, decoder: the ONNX files of the other libraries.

    Raises:
        ExportError: the decoder is not the file of a `MergedDecoder`.
        VerificationError: the graphs do not compute what those files compute.
        FileError: a file cannot be written.
    """
    heads = int(config.decoder_attention_heads)
    cache = cross_cache(int(config.decoder_layers), heads, int(config.d_model) // heads)
    own = folder / AUDIO, folder / TEXT
    try:  # a graph reads weights next to it, so that it is checked in its place
        write_cross_attention(encoder, decoder, *own, cache)
        _check(config, (encoder, decoder), own, cache)
    except BaseException:
        for path in own:
            path.unlink(missing_ok=True)
        raise
    extractor = folder / _EXTRACTOR
    settings = json.loads(extractor.read_text("utf-8")) if extractor.is_file() else {}
    contents = {PROCESSOR: processor_config(settings), CONFIG: speech_config(config)}
    for name, content in contents.items():
        write_atomic(folder / name, f"{json.dumps(content, indent=2)}\n".encode())


def _check(
    config: Any, shared: tuple[Path, Path], own: tuple[Path, Path], cache: CrossCache
) -> None:
    """Compare the states and the logits of the first token of both pairs of files.

    Args:
        shared: encoder and decoder of the other libraries.
        own: encoder and decoder of onnxruntime-genai.

    Raises:
        VerificationError: they differ in a bit.
    """
    inputs = session(shared[0]).get_inputs()
    draw = np.random.default_rng(0)
    sizes = [[s if isinstance(s, int) else 1 for s in i.shape] for i in inputs]
    sound = {
        i.name: draw.normal(size=size).astype(np.float32)
        for i, size in zip(inputs, sizes, strict=True)
    }
    start = {"input_ids": np.array([[int(config.decoder_start_token_id)]])}
    states = _outputs(shared[0], sound)
    first = _outputs(shared[1], {**start, STATES: states[ENCODED]})
    audio = _outputs(own[0], sound)
    pasts = {cache.past(name): audio[cache.present(name)] for name in cache.names}
    text = _outputs(own[1], {**start, **pasts})
    pairs = [(states[ENCODED], audio[ENCODED]), *((first[name], text[name]) for name in text)]
    if not all(np.array_equal(a, b) for a, b in pairs):
        raise VerificationError(
            f"{own[1]}: it does not compute what {shared[1].name} computes, which is a bug in qtool"
        )


def _outputs(path: Path, feed: NamedArrays) -> NamedArrays:
    """Return the outputs of a file by name; inputs that the feed lacks are an empty cache."""
    opened = session(path, once=True)
    empty = {i.name: _empty_cache(i) for i in opened.get_inputs() if i.name not in feed}
    names = [o.name for o in opened.get_outputs()]
    return dict(zip(names, opened.run(None, {**feed, **empty}), strict=True))


def _empty_cache(cache: Any) -> Array:
    """Return an input of one sample whose other open sizes are 0."""
    sizes = [size if isinstance(size, int) else 0 for size in cache.shape[1:]]
    return np.zeros([1, *sizes], np.float32)


def speech_config(config: Any) -> dict[str, Any]:
    """Return the configuration of onnxruntime-genai for Whisper; greedy search by default."""
    length = int(config.max_target_positions)
    pairs = {"key": "past_key_values.%d.{}.key", "value": "past_key_values.%d.{}.value"}
    own, cross = ({k: v.format(part) for k, v in pairs.items()} for part in ("decoder", "encoder"))
    own_new = {k: v.replace("past_key_values", "present") for k, v in own.items()}
    cross_new = {k: v.replace("past_key_values", "present") for k, v in cross.items()}
    ends = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return {
        "model": {
            "type": "whisper",
            **{key: getattr(config, key) for key in ends if getattr(config, key, None) is not None},
            "context_length": length,
            "vocab_size": int(config.vocab_size),
            "encoder": {
                **_sizes(config, "encoder", AUDIO),
                "inputs": {"audio_features": "input_features"},
                "outputs": {
                    "encoder_hidden_states": "last_hidden_state",
                    **{f"cross_present_{kind}_names": name for kind, name in cross_new.items()},
                },
            },
            "decoder": {
                **_sizes(config, "decoder", TEXT),
                "inputs": {
                    "input_ids": "input_ids",
                    **{f"past_{kind}_names": name for kind, name in own.items()},
                    **{f"cross_past_{kind}_names": name for kind, name in cross.items()},
                },
                "outputs": {
                    "logits": "logits",
                    **{f"present_{kind}_names": name for kind, name in own_new.items()},
                },
            },
            "speech": {"config_filename": PROCESSOR},
        },
        "search": {"do_sample": False, "max_length": length, "past_present_share_buffer": False},
    }


def _sizes(config: Any, part: str, file: str) -> dict[str, Any]:
    heads = int(getattr(config, f"{part}_attention_heads"))
    return {
        "filename": file,
        "hidden_size": int(config.d_model),
        "head_size": int(config.d_model) // heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": int(getattr(config, f"{part}_layers")),
        "session_options": _SESSION,
    }


def processor_config(extractor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the runtime's own feature extractor.

    Args:
        extractor: preprocessor_config.json of the model.
    """
    length, hop = int(extractor.get("n_fft", 400)), int(extractor.get("hop_length", 160))
    spectrum = {"n_fft": length, "frame_length": length, "hop_length": hop}
    mel = {
        "chunk_size": int(extractor.get("chunk_length", 30)),
        "hop_length": hop,
        "n_fft": length,
        "n_mel": int(extractor.get("feature_size", 80)),
    }
    steps: tuple[tuple[str, str, dict[str, int]], ...] = (
        ("audio_decoder", "AudioDecoder", {}),
        ("STFT", "STFTNorm", spectrum),
        ("log_mel_spectrogram", "LogMelSpectrum", mel),
    )
    sequence = [
        {"operation": {"name": name, "type": kind, **({"attrs": attrs} if attrs else {})}}
        for name, kind, attrs in steps
    ]
    return {"feature_extraction": {"sequence": sequence}}
