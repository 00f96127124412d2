"""A second set of families of timm and transformers."""

from __future__ import annotations

from typing import Any

import torch
from from_timm import row
from from_transformers import PATCHES, SIZES, SPREAD, built, text
from network import Inputs, Network, Rows, ids, images, joined, mask, waves

__all__ = ["MORE_BY_NAME"]

MORE_BY_NAME = Rows("timm and transformers, second set")
GROUP = MORE_BY_NAME.group
_DECODER: dict[str, Any] = {"use_cache": False, "num_key_value_heads": 2, "head_dim": 16}

_TIMM: dict[str, dict[str, Any]] = {
    "resnet26d": {},
    "gcresnext26ts": {},
    "eca_nfnet_l0": {},
    "halonet26t": {"size": 256},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2, 2)},
    "efficientnet_lite0": {},
    "tf_efficientnetv2_b0": {},
    "mobilenetv3_small_050": {},
    "tinynet_e": {},
    "fbnetc_100": {},
    "rexnet_100": {},
    "repghostnet_050": {},
    "repvit_m0_9": {},
    "mobilevitv2_050": {},
    "inception_next_atto": {},
    "coatnet_pico_rw_224": {"size": 224},
    "gcvit_xxtiny": {"size": 224},
    "pit_ti_224": {"size": 224},
    "pvt_v2_b0": {},
    "swinv2_cr_tiny_224": {"size": 224, "embed_dim": 48, "depths": (1, 1, 1, 1)},
    "nest_tiny": {"size": 224},
    "convit_tiny": {"size": 224},
    "visformer_tiny": {"size": 224},
    "hrnet_w18_small": {},
    "cspresnet50": {},
    "resmlp_12_224": {"size": 224},
    "dpn48b": {},
    "ghostnetv3_050": {},
    "mobilenetv4_hybrid_medium": {"size": 64},
    "shvit_s1": {"size": 224},
    "swiftformer_xs": {"size": 224},
    "fasternet_t0": {},
}
MORE_BY_NAME.update(
    {f"timm_{n}": row(n, **{"group": GROUP, **options}) for n, options in _TIMM.items()}
)

_ENCODERS: dict[str, dict[str, Any]] = {
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
}
_DECODERS: dict[str, dict[str, Any]] = {
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "GPTJ": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "CodeGen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "Mistral": {},
    "Qwen2": {},
    "Gemma3Text": {"layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": {"bos_token_id": 1, "eos_token_id": 2},
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


def _regrouped(network: Network) -> Network:
    return Network(GROUP, network.build, network.inputs, network.dynamic)


for _name, _options in _ENCODERS.items():
    _fixed = {} if _name != "Nystromformer" else {"fixed": True}
    MORE_BY_NAME[_name.lower()] = _regrouped(text(f"{_name}Model", _options, **_fixed))
for _name, _options in _DECODERS.items():
    MORE_BY_NAME[_name.lower()] = _regrouped(text(f"{_name}Model", {**_DECODER, **_options}))


def _images(model: str, size: int = 64, **options: Any) -> Network:
    return Network(GROUP, built(model, options), images(3, size, size, name="pixel_values"))


def _frames(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    clip = images(3, 4, 32, 32)(count, generator)["x"]
    return {"pixel_values": clip.transpose(1, 2).contiguous()}


_STAGES = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
_BOTH: Inputs = joined(
    ids(12, 200, "input_ids"), images(3, 64, 64, name="pixel_values"), mask(12, "attention_mask")
)
_NAMES = {n: {0: "batch"} for n in ("input_ids", "pixel_values", "attention_mask")}
_SOUND = {
    **SIZES,
    "conv_dim": (32, 32),
    "conv_kernel": (10, 8),
    "conv_stride": (5, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}

MORE_BY_NAME.update(
    {
        "dinov2": _images("Dinov2Model", **PATCHES),
        "dinov3_convnext": _images("DINOv3ConvNextModel", hidden_sizes=[16, 24, 32, 48],
            depths=[1, 1, 1, 1]),
        "convnext_hf": _images("ConvNextModel", hidden_sizes=[16, 24, 32, 48], depths=[1] * 4),
        "resnet_hf": _images("ResNetModel", **_STAGES),
        "regnet_hf": _images("RegNetModel", groups_width=8, **_STAGES),
        "mobilevit_hf": _images("MobileViTModel", hidden_sizes=[24, 32, 40],
            neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64], image_size=64),
        "pvt": _images("PvtModel", image_size=64, depths=[1] * 4, hidden_sizes=[16, 32, 48, 64],
            num_attention_heads=[1, 2, 3, 4], mlp_ratios=[2] * 4,
            sequence_reduction_ratios=[8, 4, 2, 1]),
        "glpn": _images("GLPNForDepthEstimation", depths=[1] * 4, hidden_sizes=[16, 32, 48, 64],
            num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32),
        "swin2sr": _images("Swin2SRForImageSuperResolution", image_size=32, size=32, embed_dim=32,
            depths=[1, 1], num_heads=[2, 2], window_size=4),
        "vivit": Network(GROUP, built("VivitModel", {**PATCHES, "image_size": 32, "num_frames": 4,
            "tubelet_size": [2, 8, 8]}), _frames),
        "vilt": Network(GROUP, built("ViltModel", {**SIZES, **PATCHES}), _BOTH, _NAMES),
        "clipseg": Network(GROUP, built("CLIPSegForImageSegmentation", {"text_config": {**SIZES,
            "eos_token_id": 2}, "vision_config": PATCHES, "projection_dim": 32, "reduce_dim": 32,
            "extract_layers": [0, 1], "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 64}), _BOTH, _NAMES),
        "git": Network(GROUP, built("GitModel", {**SIZES, "vision_config": PATCHES,
            "use_cache": False}), _BOTH, _NAMES),
        "visual_bert": Network(GROUP, built("VisualBertModel", {**SIZES,
            "visual_embedding_dim": 32}), joined(ids(12, 200, "input_ids"),
            lambda n, g: {"visual_embeds": torch.randn(n, 5, 32, generator=g)})),
        "wavlm": Network(GROUP, built("WavLMModel", _SOUND), waves(800, "input_values")),
        "unispeech": Network(GROUP, built("UniSpeechModel", _SOUND), waves(800, "input_values")),
        "data2vec_audio": Network(GROUP, built("Data2VecAudioModel", {**_SOUND,
            "num_conv_pos_embeddings": 2}), waves(800, "input_values")),
        "ast": Network(GROUP, built("ASTModel", {**{k: v for k, v in PATCHES.items() if k not in
            ("image_size", "patch_size")}, "max_length": 64, "num_mel_bins": 32}),
            lambda n, g: {"input_values": images(1, 64, 32)(n, g)["x"][:, 0]}),
        "speech_to_text": Network(GROUP, built("Speech2TextModel", {"vocab_size": 200,
            "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "init_std": SPREAD, "use_cache": False, "input_feat_per_channel": 40,
            "conv_channels": 64, "decoder_start_token_id": 2}), joined(
            lambda n, g: {"input_features": images(1, 64, 40)(n, g)["x"][:, 0]},
            ids(8, 200, "decoder_input_ids"))),
        "autoformer": Network(GROUP, built("AutoformerModel", {"context_length": 24,
            "prediction_length": 12, "lags_sequence": [1, 2], "num_time_features": 1,
            "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "moving_average": 5,
            "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}), lambda n, g: {
                "past_values": torch.randn(n, 26, generator=g).cumsum(1),
                "past_time_features": torch.randn(n, 26, 1, generator=g),
                "past_observed_mask": torch.ones(n, 26),
                "future_values": torch.randn(n, 12, generator=g).cumsum(1),
                "future_time_features": torch.randn(n, 12, 1, generator=g)}),
    }
)  # fmt: skip
