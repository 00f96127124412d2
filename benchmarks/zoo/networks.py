"""The networks of the benchmark: what people have, with random weights, so nothing is downloaded.

Their architecture is what is tried here; benchmarks/realdata.py has trained weights. torchvision
and transformers are optional: a network whose library is missing is a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.transformer_sizes import transformer_sizes

__all__ = ["NETWORKS", "Network"]

Inputs = Callable[[int, torch.Generator], dict[str, torch.Tensor]]
_LIBRARIES: list[Any] = []  # operator definitions live as long as their library object


@dataclass(frozen=True)
class Network:
    """One row of the table.

    family: the paper it comes from. group: the table of the page it stands in. inputs: (batch size,
    generator) -> inputs by the names of `forward`. dynamic: input -> {dimension: name}, for
    `qtool.quantize`; the batch alone where it is empty. resize: makes inputs of other dynamic sizes
    of a batch, to show that they are dynamic in the file.
    """

    group: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def other_sizes(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch with three samples and, where the sequence is dynamic, five steps less."""
        found = {}
        for name, value in batch.items():
            value = value[:3]
            for axis in self.dynamic.get(name, {}):
                value = value if axis == 0 else value.narrow(axis, 0, value.shape[axis] - 5)
            found[name] = value.contiguous()
        return found


# --- inputs ----------------------------------------------------------------------------------


def smooth(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Images (or clips) that have large shapes and small details, as photographs do; normalized."""
    rank = len(shape) - 2
    mode = "bilinear" if rank == 2 else "trilinear"
    image = 0.1 * torch.randn(shape, generator=generator)
    for cells in (3, 8, 24):
        coarse = torch.randn(*shape[:2], *[min(cells, s) for s in shape[2:]], generator=generator)
        image += F.interpolate(coarse, shape[2:], mode=mode)
    return image / image.std()


def _images(name: str, *sizes: int) -> Inputs:
    return lambda count, generator: {name: smooth((count, *sizes), generator)}


def _tokens(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Token ids and the mask of padded texts of 16 to 32 tokens."""
    ids = torch.randint(3, VOCABULARY, (count, TOKENS), generator=generator)
    return {"input_ids": ids, "attention_mask": _mask(count, generator).long()}


def _mask(count: int, generator: torch.Generator) -> torch.Tensor:
    """True where there is a token, False where there is padding at the end."""
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (count, 1), generator=generator)
    return torch.arange(TOKENS) < lengths


def _steps(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    x = torch.randn(count, TOKENS, WIDTH, generator=generator)
    return {"x": x, "padding": ~_mask(count, generator)}


def _steps_and_memory(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    found = _steps(count, generator)
    found["memory"] = torch.randn(count, TOKENS, WIDTH, generator=generator)
    found["memory_padding"] = ~_mask(count, generator)
    return found


# --- torchvision -----------------------------------------------------------------------------


def _library() -> Any:
    """torchvision; where its compiled part fits another torch it is not needed, but its operators
    have to be known by name."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
        import torchvision
    return torchvision


def _vision(group: str, family: str, path: str, *sizes: int, **options: Any) -> tuple[str, Network]:
    """A torchvision builder by its path below torchvision.models."""
    folder, _, name = path.rpartition(".")
    argument = "input" if family == "lraspp" else "x"

    def build() -> nn.Module:
        models = _library().models
        builder = getattr(getattr(models, folder) if folder else models, name)
        return builder(weights=None, **options)

    return name, Network(group, family, build, _images(argument, *sizes))


_WHOLE = {"aux_logits": False, "init_weights": False}  # as for inference; no slow initialisation
_BACKBONE = {"weights_backbone": None}
_CLASSIFIERS = (
    ("alexnet", "alexnet"),
    ("vgg", "vgg11_bn"),
    ("resnet", "resnet18"),
    ("resnet", "resnet50"),
    ("resnet", "wide_resnet50_2"),
    ("resnext", "resnext50_32x4d"),
    ("densenet", "densenet121"),
    ("squeezenet", "squeezenet1_1"),
    ("mobilenet", "mobilenet_v2"),
    ("mobilenet", "mobilenet_v3_small"),
    ("mobilenet", "mobilenet_v3_large"),
    ("shufflenet", "shufflenet_v2_x1_0"),
    ("mnasnet", "mnasnet1_0"),
    ("efficientnet", "efficientnet_b0"),
    ("efficientnet", "efficientnet_v2_s"),
    ("regnet", "regnet_y_400mf"),
    ("regnet", "regnet_x_400mf"),
    ("convnext", "convnext_tiny"),
)
_VISION_TRANSFORMERS = (
    ("vit", "vit_b_16"),
    ("swin", "swin_t"),
    ("swin", "swin_v2_t"),
    ("maxvit", "maxvit_t"),
)
CONV, SEGMENT, VIDEO = "Classification", "Segmentation", "Video"
VISION, TEXT = "Vision transformers", "Transformers"


# --- transformers, from configurations ---------------------------------------------------------

VOCABULARY, TOKENS, WIDTH = 200, 32, 96
_SIZES = transformer_sizes(VOCABULARY, WIDTH)
SPREAD = _SIZES["initializer_range"]


def _transformer(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of the library by the names of its class and of its configuration's class."""

    def build() -> nn.Module:
        _library()  # transformers imports torchvision where it is installed
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return build


def _text(family: str, model: str, config: str, **options: Any) -> tuple[str, Network]:
    dims = {0: "batch", 1: "sequence"}
    dynamic = {"input_ids": dims, "attention_mask": dims}
    build = _transformer(model, config, **options)
    return family, Network(TEXT, family, build, _tokens, dynamic)


class Encoder(nn.Module):
    """nn.TransformerEncoder with a causal mask and a padding mask. x: [B, T, WIDTH] float32."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=_causal(x), src_key_padding_mask=padding)


class Decoder(nn.Module):
    """nn.TransformerDecoder with a causal mask and padding masks of both sequences."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)

    def forward(
        self,
        x: torch.Tensor,
        padding: torch.Tensor,
        memory: torch.Tensor,
        memory_padding: torch.Tensor,
    ) -> torch.Tensor:
        return self.layers(
            x,
            memory,
            tgt_mask=_causal(x),
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=memory_padding,
        )


def _causal(x: torch.Tensor) -> torch.Tensor:
    """[T, T], True where a step must not look."""
    size = x.shape[1]
    return torch.ones(size, size, dtype=torch.bool).triu(1)


_STEPS = {0: "batch", 1: "sequence"}
_MEMORY = {0: "batch", 1: "memory_sequence"}

NETWORKS: Mapping[str, Network] = dict(
    (
        *(_vision(CONV, family, name, 3, 224, 224) for family, name in _CLASSIFIERS),
        _vision(CONV, "inception", "googlenet", 3, 224, 224, **_WHOLE),
        _vision(CONV, "inception", "inception_v3", 3, 299, 299, **_WHOLE),
        *(_vision(VISION, family, name, 3, 224, 224) for family, name in _VISION_TRANSFORMERS),
        _vision(SEGMENT, "fcn", "segmentation.fcn_resnet50", 3, 224, 224, **_BACKBONE),
        _vision(
            SEGMENT,
            "deeplab",
            "segmentation.deeplabv3_mobilenet_v3_large",
            3,
            224,
            224,
            **_BACKBONE,
        ),
        _vision(
            SEGMENT, "lraspp", "segmentation.lraspp_mobilenet_v3_large", 3, 224, 224, **_BACKBONE
        ),
        _vision(VIDEO, "video_resnet", "video.r3d_18", 3, 8, 112, 112),
        _vision(VIDEO, "video_resnet", "video.mc3_18", 3, 8, 112, 112),
        _text("bert", "BertModel", "BertConfig", **_SIZES),
        _text(
            "distilbert",
            "DistilBertModel",
            "DistilBertConfig",
            vocab_size=VOCABULARY,
            dim=WIDTH,
            n_layers=2,
            n_heads=4,
            hidden_dim=4 * WIDTH,
            initializer_range=SPREAD,
            max_position_embeddings=64,
        ),
        _text("roberta", "RobertaModel", "RobertaConfig", **_SIZES),
        _text("albert", "AlbertModel", "AlbertConfig", embedding_size=64, **_SIZES),
        _text(
            "gpt2",
            "GPT2Model",
            "GPT2Config",
            vocab_size=VOCABULARY,
            n_embd=WIDTH,
            n_layer=2,
            n_head=4,
            n_positions=64,
            initializer_range=SPREAD,
            bos_token_id=1,
            eos_token_id=2,
            use_cache=False,
        ),
        _text(
            "t5",
            "T5EncoderModel",
            "T5Config",
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=24,
            d_ff=4 * WIDTH,
            num_layers=2,
            num_heads=4,
        ),
        _text(
            "llama", "LlamaModel", "LlamaConfig", num_key_value_heads=2, use_cache=False, **_SIZES
        ),
        (
            "hf_vit",
            Network(
                TEXT,
                "vit",
                _transformer(
                    "ViTModel",
                    "ViTConfig",
                    image_size=64,
                    patch_size=16,
                    **{k: v for k, v in _SIZES.items() if not k.startswith(("vocab", "max"))},
                ),
                _images("pixel_values", 3, 64, 64),
            ),
        ),
        (
            "whisper",
            Network(
                TEXT,
                "whisper",
                lambda: (
                    _transformer(
                        "WhisperModel",
                        "WhisperConfig",
                        vocab_size=VOCABULARY,
                        d_model=WIDTH,
                        encoder_layers=2,
                        decoder_layers=1,
                        encoder_attention_heads=4,
                        decoder_attention_heads=4,
                        encoder_ffn_dim=4 * WIDTH,
                        decoder_ffn_dim=4 * WIDTH,
                        max_source_positions=64,
                        init_std=SPREAD,
                        pad_token_id=0,
                        bos_token_id=1,
                        eos_token_id=2,
                        decoder_start_token_id=1,
                    )().encoder
                ),
                lambda n, g: {"input_features": smooth((n, 1, 80, 128), g)[:, 0]},
            ),
        ),
        (
            "torch_encoder",
            Network(TEXT, "transformer", Encoder, _steps, {"x": _STEPS, "padding": _STEPS}),
        ),
        (
            "torch_decoder",
            Network(
                TEXT,
                "transformer",
                Decoder,
                _steps_and_memory,
                {"x": _STEPS, "padding": _STEPS, "memory": _MEMORY, "memory_padding": _MEMORY},
            ),
        ),
    )
)
