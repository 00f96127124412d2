"""Networks of transformers for images, sounds and series, from small configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.networks.random_inputs import (
    Inputs,
    Network,
    ids,
    images,
    joined,
    mask,
    noise,
    waves,
)
from benchmarks.networks.random_text import BART, SIZES, SPREAD, VOCABULARY, built

__all__ = ["OTHERS"]

VISION, SERIES = "transformers: vision", "transformers: audio, series"
WIDTH = SIZES["hidden_size"]
PATCHES = {k: v for k, v in SIZES.items() if not k.startswith(("vocab", "max", "pad"))}
PATCHES |= {"image_size": 64, "patch_size": 16}
ONES, HEADS, WIDTHS = [1] * 4, [1, 2, 3, 4], [16, 24, 32, 48]
PYRAMID = {"depths": ONES, "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": HEADS}
STAGES = {"embedding_size": 16, "hidden_sizes": WIDTHS, "depths": ONES}


def _vision(model: str, options: Any, inputs: Inputs | None = None) -> Network:
    inputs = inputs or images(3, 64, 64, name="pixel_values")
    return Network(VISION, built(model, options), inputs)


def _detr(module: Any, name: str, **options: Any) -> Any:
    layers = {"layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}
    backbone = module.ResNetConfig(**STAGES, **layers)
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


_READ = {**SIZES, "eos_token_id": 2}
_TOWERS = {"text_config": _READ, "vision_config": PATCHES, "projection_dim": 32}
_BOTH = joined(ids(12, VOCABULARY), images(3, 64, 64, name="pixel_values"), mask(12))
_CLIPS = {**PATCHES, "image_size": 32, "patch_size": 8, "num_frames": 4}


def _video(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    clip = images(3, 4, 32, 32)(count, generator)["x"]
    return {"pixel_values": clip.transpose(1, 2).contiguous()}


_BLIP = {
    "image_text_hidden_size": 32,
    "text_config": {**_READ, "encoder_hidden_size": WIDTH, "bos_token_id": 1, "sep_token_id": 2},
}
_CLIPSEG = {"reduce_dim": 32, "extract_layers": [0, 1], "decoder_num_attention_heads": 4}
_DPT = {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "fusion_hidden_size": 32}
_SWIN = {"embed_dim": 32, "window_size": 4, "initializer_range": SPREAD}

ROWS: dict[str, Network] = {
    "swin_hf": _vision(
        "SwinModel", {**_SWIN, "image_size": 64, "depths": [2, 2], "num_heads": [2, 4]}),
    "segformer": _vision("SegformerForSemanticSegmentation",
        {**PYRAMID, "decoder_hidden_size": 64, "initializer_range": 0.15}),
    "yolos": _vision("YolosForObjectDetection",
        {**PATCHES, "image_size": [64, 64], "num_detection_tokens": 10}),
    "vit_mae": _vision("ViTMAEModel", PATCHES),
    "dpt": _vision("DPTForDepthEstimation",
        {**PATCHES, **_DPT, "neck_hidden_sizes": PYRAMID["hidden_sizes"]}),
    "detr": _vision("DetrForObjectDetection", lambda m: _detr(m, "DetrConfig")),
    "table_transformer": _vision("TableTransformerForObjectDetection",
        lambda m: _detr(m, "TableTransformerConfig")),
    "deformable_detr": _vision("DeformableDetrForObjectDetection",
        lambda m: _detr(m, "DeformableDetrConfig", num_feature_levels=3)),
    "clip": _vision("CLIPModel", _TOWERS, _BOTH),
    "siglip": _vision("SiglipModel", _TOWERS, _BOTH),
    "blip": _vision("BlipForImageTextRetrieval", {**_TOWERS, **_BLIP}, _BOTH),
    "timesformer": _vision("TimesformerModel", _CLIPS, _video),
    "videomae": _vision("VideoMAEModel", {**_CLIPS, "tubelet_size": 2}, _video),
    "dinov2": _vision("Dinov2Model", PATCHES),
    "dinov3_convnext": _vision("DINOv3ConvNextModel", {"hidden_sizes": WIDTHS, "depths": ONES}),
    "convnext_hf": _vision("ConvNextModel", {"hidden_sizes": WIDTHS, "depths": ONES}),
    "resnet_hf": _vision("ResNetModel", STAGES),
    "regnet_hf": _vision("RegNetModel", {**STAGES, "groups_width": 8}),
    "mobilevit_hf": _vision("MobileViTModel", {"hidden_sizes": [24, 32, 40], "image_size": 64,
        "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]}),
    "pvt": _vision("PvtModel", {**PYRAMID, "image_size": 64, "mlp_ratios": [2] * 4,
        "sequence_reduction_ratios": [8, 4, 2, 1]}),
    "glpn": _vision("GLPNForDepthEstimation", {**PYRAMID, "decoder_hidden_size": 32}),
    "swin2sr": _vision("Swin2SRForImageSuperResolution",
        {**_SWIN, "image_size": 32, "depths": [1, 1], "num_heads": [2, 2]}),
    "vivit": _vision("VivitModel", {**_CLIPS, "patch_size": 16, "tubelet_size": [2, 8, 8]},
        _video),
    "vilt": _vision("ViltModel", {**SIZES, **PATCHES}, _BOTH),
    "clipseg": _vision("CLIPSegForImageSegmentation",
        {**_TOWERS, **_CLIPSEG, "decoder_intermediate_size": 64}, _BOTH),
    "git": _vision("GitModel", {**SIZES, "vision_config": PATCHES, "use_cache": False}, _BOTH),
    "visual_bert": _vision("VisualBertModel", {**SIZES, "visual_embedding_dim": 32},
        joined(ids(12, VOCABULARY), noise(5, 32, name="visual_embeds"))),
}  # fmt: skip

# --- sounds and series ---------------------------------------------------------------------------

_SOUND = {
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
_CONFORMER = {"output_hidden_size": WIDTH, "position_embeddings_type": "relative"}
_WHISPER = {**BART, "num_mel_bins": 40, "max_source_positions": 32, "max_target_positions": 32}
_SPEECH = {**BART, "input_feat_per_channel": 40, "conv_channels": 64, "decoder_start_token_id": 2}
_CODEC = {"num_filters": 8, "hidden_size": 32, "codebook_dim": 32, "upsampling_ratios": [4, 2]}
_CODEC |= {"num_lstm_layers": 1, "codebook_size": 64}
_PATCH = {"context_length": 48, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3}
_FUTURE = {"context_length": 24, "prediction_length": 12, "lags_sequence": [1, 2], "d_model": 32}
_FUTURE |= {"num_time_features": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_FUTURE |= {"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


def _mels(height: int, width: int, name: str = "input_features") -> Inputs:
    """Images [B, height, width] of frequencies over time."""
    return lambda n, g: {name: images(1, height, width)(n, g)["x"][:, 0]}


def _walks(length: int) -> Inputs:
    """Random walks [B, T, 3]."""
    return lambda n, g: {"past_values": noise(length, 3)(n, g)["x"].cumsum(1) * 0.3}


def _past_and_future(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    walk = torch.randn(count, 38, generator=generator).cumsum(1) * 0.3
    return {
        "past_values": walk[:, :26].contiguous(),
        "past_time_features": torch.randn(count, 26, 1, generator=generator),
        "past_observed_mask": torch.ones(count, 26),
        "future_values": walk[:, 26:].contiguous(),
        "future_time_features": torch.randn(count, 12, 1, generator=generator),
    }


def _series(model: str, options: Mapping[str, Any], *parts: Inputs) -> Network:
    return Network(SERIES, built(model, options), joined(*parts or (waves(800, "input_values"),)))


_TARGET = ids(8, VOCABULARY, "decoder_input_ids")
OTHERS: dict[str, Network] = {
    **ROWS,
    "wav2vec2": _series("Wav2Vec2Model", _SOUND),
    "hubert": _series("HubertModel", _SOUND),
    "wavlm": _series("WavLMModel", _SOUND),
    "unispeech": _series("UniSpeechModel", _SOUND),
    "data2vec_audio": _series("Data2VecAudioModel", {**_SOUND, "num_conv_pos_embeddings": 2}),
    "w2v2_conformer": _series("Wav2Vec2ConformerForCTC",
        {**_SOUND, **_CONFORMER, "conv_depthwise_kernel_size": 7}),
    "whisper_full": _series("WhisperForConditionalGeneration", _WHISPER, _mels(40, 64), _TARGET),
    "speech_to_text": _series("Speech2TextModel", _SPEECH, _mels(64, 40), _TARGET),
    "encodec": _series("EncodecModel", _CODEC,
        lambda n, g: {"input_values": waves(800)(n, g)["x"][:, None]}),
    "ast": _series("ASTModel", {**{k: v for k, v in PATCHES.items() if "_size" not in k[-5:] or
        k in ("hidden_size", "intermediate_size")}, "max_length": 64, "num_mel_bins": 32},
        _mels(64, 32, "input_values")),
    "patchtst": _series("PatchTSTForPrediction", {**_PATCH, "d_model": WIDTH, "ffn_dim": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "prediction_length": 8,
        "do_mask_input": False}, _walks(48)),
    "patchtsmixer": _series("PatchTSMixerForPrediction",
        {**_PATCH, "d_model": 32, "num_layers": 2, "prediction_length": 8}, _walks(48)),
    "informer": _series("InformerModel", {**_FUTURE, "encoder_layers": 2}, _past_and_future),
    "autoformer": _series("AutoformerModel",
        {**_FUTURE, "encoder_layers": 1, "moving_average": 5}, _past_and_future),
}  # fmt: skip
