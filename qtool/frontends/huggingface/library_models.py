"""The models that libraries load, by the `model_type` of config.json, from their own lists.

A library refuses another type; Optimum makes an empty KV cache of another shape than a file takes.
Sources, to look at when a newer version is tested:

- onnxruntime-genai 0.18: `ModelType::IsLLM` in src/models/model_type.h, without gpt2, whose cache
  it takes as one tensor per layer, and types that transformers does not have.
- @huggingface/transformers 4.3: `MODEL_FOR_..._MAPPING_NAMES` in src/models/registry.js.
- optimum-onnx 0.1: `ORTModelForCausalLM.__init__` in optimum/onnxruntime/modeling_decoder.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


GENAI_DECODERS = _types(
    """
    ernie4_5 gemma gemma2 gemma3_text granite internlm2 llama mistral nemotron olmo
    phi phi3 phi3small phimoe qwen2 qwen3 smollm3
    """
)

_DENSE = {"mixtral": "mistral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen3"}
"""Type of a mixture of experts -> the type with equal inputs and outputs; onnxruntime-genai, which
reads nothing else of a type of decoder, knows that one alone."""


def genai_type(model_type: str) -> str:
    """Return the type that onnxruntime-genai is to load a decoder as."""
    return _DENSE.get(str(model_type), str(model_type))


JS_TYPES: Mapping[str, frozenset[str]] = {
    "text-generation": _types(
        """
        afmoe apertus arcee bloom codegen cohere cohere2 deepseek_v3 deepseek_v4 ernie4_5 exaone
        falcon falcon_h1 gemma gemma2 gemma3 gemma3_text gemma3n gemma4 glm glm_moe_dsa gpt2
        gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoehybrid helium hrm_text
        hunyuan_v1_dense jais lfm2 lfm2_moe llama llama4_text mbart ministral ministral3 mistral
        mistral4 mobilellm modernbert-decoder mpt nanochat nemotron_h olmo olmo2 olmo3
        olmo_hybrid openelm opt phi phi3 phi3_v qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3
        qwen3_5 qwen3_5_moe qwen3_5_text qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe smollm3
        solar_open stablelm starcoder2 trocr vaultgemma youtu zaya
        """
    ),
    "text-classification": _types(
        """
        albert bart bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert
        mbart mobilebert modernbert mpnet neobert roberta roformer squeezebert xlm xlm-roberta
        """
    ),
    "token-classification": _types(
        """
        bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert modernbert
        mpnet neobert openai_privacy_filter roberta roformer xlm xlm-roberta
        """
    ),
    "question-answering": _types(
        """
        albert bert camembert convbert deberta deberta-v2 distilbert electra mobilebert mpnet
        neobert roberta roformer squeezebert xlm xlm-roberta
        """
    ),
    "fill-mask": _types(
        """
        albert bert camembert convbert deberta deberta-v2 distilbert electra esm eurobert
        mobilebert modernbert mpnet neobert roberta roformer squeezebert xlm xlm-roberta
        """
    ),
    "text2text-generation": _types(
        """
        bart blenderbot blenderbot-small longt5 m2m_100 marian mbart mt5 t5
        """
    ),
    "automatic-speech-recognition": _types(
        """
        cohere_asr hubert lite-whisper moonshine parakeet_ctc speecht5 unispeech unispeech-sat
        wav2vec2 wav2vec2-bert wavlm whisper
        """
    ),
    "audio-classification": _types(
        """
        audio-spectrogram-transformer hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert
        wavlm
        """
    ),
    "image-classification": _types(
        """
        beit convnext convnextv2 deit dinov2 dinov2_with_registers efficientnet fastvit hiera
        ijepa mobilenet_v1 mobilenet_v2 mobilenet_v3 mobilenet_v4 mobilevit mobilevitv2 pvt
        resnet segformer swin vit vit_msn
        """
    ),
    "object-detection": _types(
        """
        d_fine detr rf_detr rt_detr rt_detr_v2 table-transformer yolos
        """
    ),
    "image-segmentation": _types(
        """
        clipseg detr maskformer mobilenet_v1 mobilenet_v2 mobilenet_v3 mobilenet_v4 sapiens
        segformer swin
        """
    ),
}
"""Task of a pipeline -> types."""

_OPTIMUM_GROUPED = _types(
    """
    arcee cohere deepseek_v3 gemma gemma3 gemma3_text glm gpt_oss granite helium llama mistral
    nemotron qwen2 qwen3 qwen3_moe smollm3 stablelm
    """
)
_OPTIMUM_WIDTHS = _types("gemma gemma3 gemma3_text gpt_oss nemotron")
"""Types for which Optimum makes a cache with `num_key_value_heads`, and with `head_dim` features;
for others as many heads as the attention has, and the features of hidden_size over all heads."""


def optimum_cache(config: Any) -> tuple[int, int]:
    """Return heads and features of the KV cache that Optimum makes for a configuration."""
    kind, text = config.model_type, config.get_text_config()
    heads = int(text.num_attention_heads)
    groups = text.num_key_value_heads if kind in _OPTIMUM_GROUPED else heads
    width = text.head_dim if kind in _OPTIMUM_WIDTHS else text.hidden_size // heads
    return int(groups), int(width)
