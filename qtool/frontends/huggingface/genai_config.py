"""The configuration that onnxruntime-genai needs next to a decoder."""

from __future__ import annotations

from typing import Any

from qtool.frontends.huggingface.causal_decoder import DecoderWithCache

CONFIG = "genai_config.json"
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
    ends = {key: getattr(config, key, None) for key in _ENDS}
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
            "type": str(config.model_type),
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
