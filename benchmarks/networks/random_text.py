"""Networks of transformers for texts, from small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.networks.random_inputs import Inputs, Network, ids, images, joined, mask
from benchmarks.realdata import let_torchvision_import

__all__ = ["BART", "KNOWN", "SIZES", "SPREAD", "TEXT", "TOKENS", "VOCABULARY", "built"]

VOCABULARY, TOKENS, WIDTH = 200, 24, 64
DIMS = {0: "batch", 1: "sequence"}
GROUP = "transformers: text"


def sizes(width: int) -> dict[str, Any]:
    """Options of a configuration. The libraries' spread of weights, 0.02, is for wider layers:
    what attention does would not be seen."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 64,
        "initializer_range": width**-0.5,
    }


SIZES: Mapping[str, Any] = {**sizes(WIDTH), "pad_token_id": 0}
SPREAD = SIZES["initializer_range"]


def built(model: str, options: Mapping[str, Any] | Callable[[Any], Any]) -> Callable[[], nn.Module]:
    """A model by the name of its class, and the options of its configuration, or what makes one."""

    def build() -> nn.Module:
        let_torchvision_import()  # transformers imports it where it is installed
        import transformers

        kind = getattr(transformers, model)
        return kind(options(transformers) if callable(options) else kind.config_class(**options))

    return build


def _network(build: Callable[[], nn.Module], inputs: Inputs, dims: Mapping[int, str]) -> Network:
    names = inputs(1, torch.Generator())
    return Network(GROUP, build, inputs, dict.fromkeys(names, dims))


TOKEN_IDS = ids(TOKENS, VOCABULARY)
READ = joined(TOKEN_IDS, mask(TOKENS))


def text(model: str, *, fixed: bool = False, **options: Any) -> Network:
    """A model of ids and mask, of `SIZES` and these options."""
    return _network(built(model, {**SIZES, **options}), READ, {0: "batch"} if fixed else DIMS)


def _two(model: str, options: Mapping[str, Any]) -> Network:
    """An encoder and a decoder, each with its ids."""
    target = "decoder_input_ids"
    inputs = joined(READ, ids(12, VOCABULARY, target))
    dynamic = {"input_ids": DIMS, "attention_mask": DIMS, target: {0: "batch", 1: "target"}}
    return Network(GROUP, built(model, options), inputs, dynamic)


BART = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "init_std": SPREAD,
    "encoder_ffn_dim": 4 * WIDTH,
    "decoder_ffn_dim": 4 * WIDTH,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "max_position_embeddings": 64,
}
_T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16, "d_ff": 256, "num_layers": 2}
_T5 |= {"num_heads": 4, "use_cache": False, "decoder_start_token_id": 0}
_XLNET = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 256}
_XLNET |= {"initializer_range": SPREAD, "use_mems_eval": False}
_LLAMA = {"use_cache": False, "num_key_value_heads": 2, "head_dim": 16}
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}
_EXPERTS = {
    **_LLAMA,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
_ROTARY = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}

ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "DebertaV2": {"relative_attention": True, "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "Deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "Electra": {"embedding_size": 32},
    "MPNet": {},
    "MobileBert": {"embedding_size": 32, "intra_bottleneck_size": 32, "hidden_size": 64,
        "true_hidden_size": 32, "intermediate_size": 128},
    "ModernBert": {"global_attn_every_n_layers": 2, "local_attention": 8, **_SPECIAL,
        "cls_token_id": 1, "sep_token_id": 2},
    "Longformer": {"attention_window": 8},
    "BigBird": {"attention_type": "original_full"},
    "RemBert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "SqueezeBert": {"embedding_size": 64},
    "ConvBert": {"embedding_size": 64},
    "Nystromformer": {"num_landmarks": 24, "segment_means_seq_len": 24},
    "RoFormer": {},
    "MegatronBert": {},
    "IBert": {},
    "Ernie": {},
    "XLMRobertaXL": {},
    "Flaubert": {"emb_dim": 64, "n_layers": 2, "n_heads": 4},
    "EuroBert": {},
    "Esm": {"mask_token_id": 1},
}  # fmt: skip
DECODERS: Mapping[str, Mapping[str, Any]] = {
    "Bloom": {"n_layer": 2, "n_head": 4},
    "OPT": {"ffn_dim": 256, "word_embed_proj_dim": WIDTH},
    "GPTNeoX": {},
    "Qwen3": {},
    "Gemma2": {},
    "Phi": {},
    "Mixtral": _EXPERTS,
    "Qwen2Moe": _EXPERTS,
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "GPTJ": _ROTARY,
    "CodeGen": _ROTARY,
    "Mistral": {},
    "Qwen2": {},
    "Gemma3Text": {"layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": _SPECIAL,
    "StableLm": {},
    "Olmo2": {},
    "Cohere": {},
    "Starcoder2": {},
    "Mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "Granite": {},
    "BioGpt": {},
    "XGLM": {"d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4},
    "CTRL": {"n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 128, "n_positions": 64},
    "Nemotron": {},
    "Persimmon": {},
    "Glm": {},
    "SmolLM3": {},
}
FIXED = {"Nystromformer"}
"""Of one length."""


def _boxes(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Boxes of tokens on a page: left, top, right, bottom."""
    low = torch.randint(0, 500, (count, TOKENS, 2), generator=generator)
    return {"bbox": torch.cat([low, low + 100], -1)}


class FlatCache(nn.Module):
    """One step of a Llama whose keys and values come and go as tensors [B, heads, time, size]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = built("LlamaForCausalLM", {**SIZES, **_LLAMA})()

    def forward(
        self, input_ids: torch.Tensor, k0: torch.Tensor, v0: torch.Tensor, k1: torch.Tensor,
        v1: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self.model.config)
        for i, (k, v) in enumerate(((k0, v0), (k1, v1))):
            cache.update(k, v, i)
        result = self.model(input_ids, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return (result.logits, *(t for layer in layers for t in (layer.keys, layer.values)))


CACHE = ("k0", "v0", "k1", "v1")


def _past(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {n: 0.5 * torch.randn(count, 2, 8, 16, generator=generator) for n in CACHE}


_MAMBA = built("MambaModel", {**SIZES, "state_size": 8, "use_cache": False})
TEXT: dict[str, Network] = {
    **{n.lower(): text(f"{n}Model", fixed=n in FIXED, **o) for n, o in ENCODERS.items()},
    **{n.lower(): text(f"{n}Model", **{**_LLAMA, **o}) for n, o in DECODERS.items()},
    "xlnet": _network(built("XLNetModel", _XLNET), READ, DIMS),
    "fnet": _network(built("FNetModel", SIZES), TOKEN_IDS, {0: "batch"}),
    "layoutlm": _network(
        built("LayoutLMModel", SIZES), joined(TOKEN_IDS, _boxes, mask(TOKENS)), DIMS
    ),
    "falcon": text("FalconModel", use_cache=False),
    "bart": _two("BartModel", BART),
    "marian": _two("MarianModel", BART),
    "t5_full": _two("T5Model", _T5),
    "mamba": _network(_MAMBA, TOKEN_IDS, DIMS),
    "mamba_fixed": _network(_MAMBA, TOKEN_IDS, {0: "batch"}),
    "llama_flat_cache": Network(
        GROUP,
        FlatCache,
        joined(ids(1, VOCABULARY), _past),
        {"input_ids": {0: "batch"}, **{name: {0: "batch", 2: "past"} for name in CACHE}},
    ),
}

# --- well-known ones, half as wide again ---------------------------------------------------------

WIDER = 96
_SIZES = sizes(WIDER)
_WHISPER = {**BART, "d_model": WIDER, "decoder_layers": 1, "max_source_positions": 64}
_WHISPER |= {"encoder_ffn_dim": 4 * WIDER, "decoder_ffn_dim": 4 * WIDER, "init_std": WIDER**-0.5}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDER, "n_layer": 2, "n_head": 4, "n_positions": 64}
_DISTIL = {"vocab_size": VOCABULARY, "dim": WIDER, "n_layers": 2, "n_heads": 4, "hidden_dim": 384}
_VIT = {k: v for k, v in _SIZES.items() if not k.startswith(("vocab", "max"))}


class Layers(nn.Module):
    """nn.TransformerEncoder or nn.TransformerDecoder with a causal mask and padding masks.

    x, memory: [B, T, WIDER] float32.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        layer = getattr(nn, f"Transformer{kind}Layer")(WIDER, 4, 4 * WIDER, batch_first=True)
        self.layers = getattr(nn, f"Transformer{kind}")(layer, 2)


class Encoder(Layers):
    """Of one sequence."""

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=_causal(x), src_key_padding_mask=padding)


class Decoder(Layers):
    """Of a sequence and its memory."""

    def forward(
        self, x: torch.Tensor, padding: torch.Tensor, memory: torch.Tensor,
        memory_padding: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        masks = {"tgt_key_padding_mask": padding, "memory_key_padding_mask": memory_padding}
        return self.layers(x, memory, tgt_mask=_causal(x), **masks)


def _causal(x: torch.Tensor) -> torch.Tensor:
    """[T, T], True where a step must not look."""
    size = x.shape[1]
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def _steps(prefix: str) -> Inputs:
    """Vectors of a sequence, and True where there is padding at its end."""
    values, padding = prefix or "x", f"{prefix}_padding".strip("_")
    real = mask(TOKENS, padding, torch.bool)
    return lambda n, g: {
        values: torch.randn(n, TOKENS, WIDER, generator=g),
        padding: ~real(n, g)[padding],
    }


_STEPS = dict.fromkeys(("x", "padding"), DIMS)
_MEMORY = {n: {0: "batch", 1: "memory_sequence"} for n in ("memory", "memory_padding")}
KNOWN: dict[str, Network] = {
    "bert": text("BertModel", **_SIZES),
    "distilbert": _network(
        built("DistilBertModel", {**_DISTIL, "max_position_embeddings": 64,
            "initializer_range": WIDER**-0.5}), READ, DIMS),
    "roberta": text("RobertaModel", **_SIZES),
    "albert": text("AlbertModel", embedding_size=64, **_SIZES),
    "gpt2": _network(
        built("GPT2Model", {**_GPT2, "initializer_range": WIDER**-0.5, "bos_token_id": 1,
            "eos_token_id": 2, "use_cache": False}), READ, DIMS),
    "t5": _network(
        built("T5EncoderModel", {**_T5, "d_model": WIDER, "d_kv": 24, "d_ff": 384}), READ, DIMS),
    "llama": text("LlamaModel", num_key_value_heads=2, use_cache=False, **_SIZES),
    "vit": Network(
        GROUP, built("ViTModel", {**_VIT, "image_size": 64, "patch_size": 16}),
        images(3, 64, 64, name="pixel_values")),
    "whisper": Network(
        GROUP, lambda: built("WhisperModel", _WHISPER)().encoder,
        lambda n, g: {"input_features": images(1, 80, 128)(n, g)["x"][:, 0]}),
    "torch_encoder": Network(GROUP, partial(Encoder, "Encoder"), _steps(""), _STEPS),
    "torch_decoder": Network(GROUP, partial(Decoder, "Decoder"),
        joined(_steps(""), _steps("memory")), {**_STEPS, **_MEMORY}),
}  # fmt: skip
