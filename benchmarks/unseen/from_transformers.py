"""Networks of transformers from small configurations: text, vision, sound, series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from network import Inputs, Network, Rows, ids, images, joined, mask, noise, torchvision, waves
from torch import nn

from benchmarks.transformer_sizes import transformer_sizes

__all__ = ["SERIES", "TEXT", "VISION", "built", "text"]

TEXT, VISION = Rows("transformers: text"), Rows("transformers: vision")
SERIES = Rows("transformers: audio, series")
VOCABULARY, TOKENS, WIDTH = 200, 24, 64
DIMS = {0: "batch", 1: "sequence"}
SIZES: Mapping[str, Any] = {**transformer_sizes(VOCABULARY, WIDTH), "pad_token_id": 0}
SPREAD = SIZES["initializer_range"]
IMAGES = {k: v for k, v in SIZES.items() if not k.startswith(("vocab", "max", "pad"))}
PATCHES = {**IMAGES, "image_size": 64, "patch_size": 16}


def built(model: str, options: Mapping[str, Any] | Callable[[Any], Any]) -> Callable[[], nn.Module]:
    """A model by the name of its class, and the options of its configuration, or what makes one."""

    def build() -> nn.Module:
        torchvision()  # transformers imports it where it is installed
        import transformers

        kind = getattr(transformers, model)
        return kind(options(transformers) if callable(options) else kind.config_class(**options))

    return build


def text(
    model: str,
    more: Mapping[str, Any] | None = None,
    *,
    fixed: bool = False,
    **options: Any,
) -> Network:
    """A model of ids and mask, of `SIZES` and these options."""
    given = {**SIZES, **options}
    dynamic = {} if fixed else dict.fromkeys(("input_ids", "attention_mask"), DIMS)
    inputs = joined(ids(TOKENS, VOCABULARY, "input_ids"), mask(TOKENS, "attention_mask"))
    return Network(TEXT.group, built(model, {**given, **(more or {})}), inputs, dynamic)


def _decoder(model: str, **options: Any) -> Network:
    return text(model, {"use_cache": False, **options})


def _two(model: str, options: Mapping[str, Any]) -> Network:
    """An encoder and a decoder, each with its ids."""
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    given = joined(
        ids(TOKENS, VOCABULARY, names[0]), mask(TOKENS, names[1]), ids(12, VOCABULARY, names[2])
    )
    target = {0: "batch", 1: "target"}
    dynamic = {n: target if n == names[2] else DIMS for n in names}
    return Network(TEXT.group, built(model, options), given, dynamic)


_BART = {
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
_LLAMA = {"num_key_value_heads": 2, "head_dim": 16}
_MOE = {
    **_LLAMA,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}


def _boxes(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Boxes of tokens on a page: left, top, right, bottom."""
    low = torch.randint(0, 500, (count, TOKENS, 2), generator=generator)
    return {"bbox": torch.cat([low, low + 100], -1)}


class FlatCache(nn.Module):
    """One step of a Llama whose keys and values come and go as tensors [B, heads, time, size]."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _decoder("LlamaForCausalLM", **_LLAMA).build()

    def forward(
        self, input_ids: torch.Tensor, k0: torch.Tensor, v0: torch.Tensor, k1: torch.Tensor,
        v1: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self.model.config)
        for i, (k, v) in enumerate(((k0, v0), (k1, v1))):
            cache.update(k, v, i)
        found = self.model(input_ids, past_key_values=cache, use_cache=True)
        kept = found.past_key_values.layers
        return (found.logits, *(t for layer in kept for t in (layer.keys, layer.values)))


def _past(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    names = ("k0", "v0", "k1", "v1")
    return {n: 0.5 * torch.randn(count, 2, 8, 16, generator=generator) for n in names}


class WithCache(nn.Module):
    """A Llama that takes or gives a cache object, which torch's pytrees know of or not."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.flat = FlatCache()
        if known:
            from transformers.integrations import executorch

            executorch.register_dynamic_cache_export_support()

    def forward(self, input_ids: torch.Tensor, past: Any = None) -> Any:
        return self.flat.model(input_ids, past_key_values=past, use_cache=True)


def _cached(*, known: bool, given: bool) -> Network:
    """With a cache that is given, else only returned."""
    tokens = ids(8, VOCABULARY, "input_ids")

    def with_past(count: int, generator: torch.Generator) -> dict[str, Any]:
        from transformers.cache_utils import DynamicCache

        cache, flat = DynamicCache(), list(_past(count, generator).values())
        for i in range(2):
            cache.update(flat[2 * i], flat[2 * i + 1], i)
        return {**tokens(count, generator), "past": cache}

    return Network(TEXT.group, lambda: WithCache(known), with_past if given else tokens)


_READ = joined(ids(TOKENS, VOCABULARY, "input_ids"), mask(TOKENS, "attention_mask"))
_READ_DIMS = dict.fromkeys(("input_ids", "attention_mask"), DIMS)
_PAST = {n: {0: "batch", 2: "past"} for n in ("k0", "v0", "k1", "v1")}

TEXT.update(
    {
        "deberta_v2": text("DebertaV2Model", {"relative_attention": True, "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}),
        "deberta": text("DebertaModel", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
            "type_vocab_size": 0}),
        "electra": text("ElectraModel", embedding_size=32),
        "mpnet": text("MPNetModel"),
        "mobilebert": text("MobileBertModel", {"embedding_size": 32, "intra_bottleneck_size": 32,
            "hidden_size": 64, "true_hidden_size": 32, "intermediate_size": 128}),
        "xlnet": Network(TEXT.group, built("XLNetModel", {"vocab_size": VOCABULARY,
            "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 256,
            "initializer_range": SPREAD, "use_mems_eval": False}), _READ, _READ_DIMS),
        "fnet_hf": Network(TEXT.group, built("FNetModel", SIZES),
            ids(TOKENS, VOCABULARY, "input_ids")),
        "modernbert": text("ModernBertModel", {"global_attn_every_n_layers": 2,
            "local_attention": 8, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
            "sep_token_id": 2}),
        "longformer": text("LongformerModel", {"attention_window": 8}),
        "layoutlm": Network(TEXT.group, built("LayoutLMModel", SIZES), joined(
            ids(TOKENS, VOCABULARY, "input_ids"), _boxes, mask(TOKENS, "attention_mask")),
            dict.fromkeys(("input_ids", "bbox", "attention_mask"), DIMS)),
        "bart": _two("BartModel", _BART),
        "marian": _two("MarianModel", _BART),
        "t5_full": _two("T5Model", {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16,
            "d_ff": 256, "num_layers": 2, "num_heads": 4, "use_cache": False,
            "decoder_start_token_id": 0}),
        "bart_cache": _two("BartModel", {**_BART, "use_cache": True}),
        "bloom": _decoder("BloomModel", n_layer=2, n_head=4),
        "opt": _decoder("OPTModel", ffn_dim=256, word_embed_proj_dim=WIDTH),
        "gpt_neox": _decoder("GPTNeoXModel"),
        "falcon": _decoder("FalconModel"),
        "qwen3": _decoder("Qwen3Model", **_LLAMA),
        "gemma2": _decoder("Gemma2Model", **_LLAMA),
        "phi": _decoder("PhiModel"),
        "mixtral": _decoder("MixtralModel", **_MOE),
        "qwen2_moe": _decoder("Qwen2MoeModel", **_MOE),
        "mixtral_batched": _decoder("MixtralModel", experts_implementation="batched_mm", **_MOE),
        "mamba": Network(TEXT.group, built("MambaModel", {**SIZES, "state_size": 8,
            "use_cache": False}), ids(TOKENS, VOCABULARY, "input_ids"), {"input_ids": DIMS}),
        "mamba_fixed": Network(TEXT.group, built("MambaModel", {**SIZES, "state_size": 8,
            "use_cache": False}), ids(TOKENS, VOCABULARY, "input_ids")),
        "llama_cache_out": text("LlamaForCausalLM", {**_LLAMA, "use_cache": True}),
        "llama_cache_in": _cached(known=False, given=True),
        "llama_cache_registered": _cached(known=True, given=False),
        "llama_cache_in_registered": _cached(known=True, given=True),
        "llama_flat_cache": Network(TEXT.group, FlatCache, joined(
            ids(1, VOCABULARY, "input_ids"), _past), {"input_ids": {0: "batch"}, **_PAST}),
    }
)  # fmt: skip


def _vision(model: str, options: Any, inputs: Inputs | None = None) -> Network:
    return Network(
        VISION.group, built(model, options), inputs or images(3, 64, 64, name="pixel_values")
    )


def _detr(module: Any, name: str, **options: Any) -> Any:
    backbone = module.ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"])  # fmt: skip
    return getattr(module, name)(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=WIDTH,
        num_queries=10,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "init_std": SPREAD, **options},
    )


_TOWERS = {
    "text_config": {**SIZES, "eos_token_id": 2},
    "vision_config": PATCHES,
    "projection_dim": 32,
}
_BOTH = joined(
    *(ids(12, VOCABULARY, "input_ids"), images(3, 64, 64, name="pixel_values")),
    mask(12, "attention_mask"),
)
_CLIP = {n: {0: "batch"} for n in ("input_ids", "pixel_values", "attention_mask")}
_VIDEO = lambda n, g: {"pixel_values": images(3, 4, 32, 32)(n, g)["x"].transpose(1, 2).contiguous()}  # noqa: E731
_CLIPS = {**PATCHES, "image_size": 32, "patch_size": 8, "num_frames": 4}

VISION.update(
    {
        "swin_hf": _vision("SwinModel", {"image_size": 64, "embed_dim": 32, "depths": [2, 2],
            "num_heads": [2, 4], "window_size": 4, "initializer_range": SPREAD}),
        "segformer": _vision("SegformerForSemanticSegmentation", {"hidden_sizes": [16, 32, 48, 64],
            "depths": [1, 1, 1, 1], "decoder_hidden_size": 64, "num_attention_heads": [1, 2, 3, 4],
            "initializer_range": 0.15}),
        "yolos": _vision("YolosForObjectDetection", {**PATCHES, "image_size": [64, 64],
            "num_detection_tokens": 10}),
        "vit_mae": _vision("ViTMAEModel", PATCHES),
        "dpt": _vision("DPTForDepthEstimation", {**PATCHES, "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 32, 48, 64],
            "fusion_hidden_size": 32}),
        "detr": _vision("DetrForObjectDetection", lambda m: _detr(m, "DetrConfig")),
        "table_transformer": _vision("TableTransformerForObjectDetection",
            lambda m: _detr(m, "TableTransformerConfig")),
        "deformable_detr": _vision("DeformableDetrForObjectDetection",
            lambda m: _detr(m, "DeformableDetrConfig", num_feature_levels=3)),
        "clip_both": Network(VISION.group, built("CLIPModel", _TOWERS), _BOTH, _CLIP),
        "siglip_both": Network(VISION.group, built("SiglipModel", _TOWERS), _BOTH, _CLIP),
        "blip_both": Network(VISION.group, built("BlipForImageTextRetrieval", {**_TOWERS,
            "image_text_hidden_size": 32, "text_config": {**SIZES, "encoder_hidden_size": WIDTH,
            "bos_token_id": 1, "sep_token_id": 2}}), _BOTH, _CLIP),
        "timesformer": _vision("TimesformerModel", _CLIPS, _VIDEO),
        "videomae": _vision("VideoMAEModel", {**_CLIPS, "tubelet_size": 2}, _VIDEO),
    }
)  # fmt: skip


_W2V = {
    **SIZES,
    "conv_dim": (32, 32),
    "conv_kernel": (10, 8),
    "conv_stride": (5, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "feat_proj_dropout": 0.0,
    "apply_spec_augment": False,
}
_WHISPER = {
    **_BART,
    "num_mel_bins": 40,
    "max_source_positions": 32,
    "max_target_positions": 32,
}


def _mels(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    mels = images(1, 40, 64)(count, generator)["x"][:, 0]
    return {"input_features": mels, **ids(8, VOCABULARY, "decoder_input_ids")(count, generator)}


def _series(model: str, options: Mapping[str, Any], *parts: Inputs) -> Network:
    return Network(SERIES.group, built(model, options), joined(*parts))


_PATCH = {"context_length": 48, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3}


def _walks(name: str, length: int, channels: int) -> Inputs:
    """Random walks [B, T, channels]."""
    steps = noise(length, channels)
    return lambda n, g: {name: steps(n, g)["x"].cumsum(1) * 0.3}


SERIES.update(
    {
        "wav2vec2": _series("Wav2Vec2Model", _W2V, waves(800, "input_values")),
        "hubert": _series("HubertModel", _W2V, waves(800, "input_values")),
        "w2v2_conformer": _series("Wav2Vec2ConformerForCTC", {**_W2V, "output_hidden_size": WIDTH,
            "position_embeddings_type": "relative", "conv_depthwise_kernel_size": 7},
            waves(800, "input_values")),
        "whisper_full": _series("WhisperForConditionalGeneration", _WHISPER, _mels),
        "encodec": _series("EncodecModel", {"num_filters": 8, "hidden_size": 32,
            "codebook_dim": 32, "upsampling_ratios": [4, 2], "num_lstm_layers": 1,
            "codebook_size": 64}, lambda n, g: {"input_values": waves(800)(n, g)["x"][:, None]}),
        "patchtst": _series("PatchTSTForPrediction", {**_PATCH, "d_model": WIDTH, "ffn_dim": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "prediction_length": 8,
            "do_mask_input": False}, _walks("past_values", 48, 3)),
        "patchtsmixer": _series("PatchTSMixerForPrediction", {**_PATCH, "d_model": 32,
            "num_layers": 2, "prediction_length": 8}, _walks("past_values", 48, 3)),
        "informer": _series("InformerModel", {"context_length": 24, "prediction_length": 12,
            "lags_sequence": [1, 2], "num_time_features": 1, "d_model": 32, "encoder_layers": 2,
            "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2},
            lambda n, g: {"past_values": _walks("x", 26, 1)(n, g)["x"][..., 0],
                "past_time_features": noise(26, 1)(n, g)["x"],
                "past_observed_mask": torch.ones(n, 26),
                "future_values": _walks("x", 12, 1)(n, g)["x"][..., 0],
                "future_time_features": noise(12, 1)(n, g)["x"]}),
    }
)  # fmt: skip
