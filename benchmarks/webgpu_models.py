"""Files of the target onnxruntime-webgpu on the WebGPU provider, next to the CPU provider.

    python benchmarks/webgpu_models.py FOLDER [--only decoder,vit]

Needs `qtool emulators install --webgpu` and transformers. Networks of the examples are trained,
the others have random weights. Each is converted with 4-bit weights, without recovery, and with its
layers in float where they are convolutions. A row: nodes on the provider, nodes with activations on
the CPU provider, copies in a run, the worst output against the CPU provider at accuracy level 0,
and the share of rows with the same largest value.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from torch import nn

import qtool

TARGET, MODE = "onnxruntime-webgpu", "weight-only-int4"
EXAMPLES = Path("examples")
TEXTS = EXAMPLES / "language_model" / "evaluation.txt"
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
Case = tuple[Path, list[Any] | None]


class First(nn.Module):
    """The first result of a transformers model."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(**dict(zip(self.names, inputs, strict=True)))[0]
        return result


def by_command(path: Path, *words: str) -> Path:
    options = ("--target", TARGET, "--mode", MODE, "--accuracy", "fast", "--timing", "0")
    command = (sys.executable, "-m", "qtool", "quantize", *words, *options, "-o", str(path))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def by_call(path: Path, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Case:
    qtool.quantize(model.eval(), [batch], target=TARGET, mode=MODE, accuracy="fast").export(path)
    return path, [batch]


def ids(count: int = 4, length: int = 24, words: int = 2000) -> torch.Tensor:
    return torch.randint(5, words, (count, length), generator=torch.Generator().manual_seed(0))


def images(size: int) -> torch.Tensor:
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))


def decoder(folder: Path) -> Iterator[tuple[str, Case]]:
    """The trained decoder and a random Qwen2, prompt and step."""
    random = folder / "qwen2"
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLES / "language_model" / "model")
    tokenizer.save_pretrained(random)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer) + 8, intermediate_size=128, num_key_value_heads=2, **SMALL
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(random)
    for name, model in (("trained", EXAMPLES / "language_model" / "model"), ("random", random)):
        words = (str(model), "--task", "text-generation-with-past", "--data", str(TEXTS))
        path = by_command(folder / f"{name}.onnx", *words, "--max-length", "64")
        prompts = _prompts(tokenizer)
        yield f"decoder, {name}: prompt", (path, [_with_cache(path, p, 0) for p in prompts])
        yield f"decoder, {name}: step", (path, [_with_cache(path, p[:, :1], 24) for p in prompts])


def _prompts(tokenizer: Any) -> list[np.ndarray]:
    tokens = np.array(tokenizer(TEXTS.read_text())["input_ids"][:256], np.int64)
    return list(tokens.reshape(4, 1, 64))


def _with_cache(path: Path, tokens: np.ndarray, past: int) -> dict[str, np.ndarray]:
    random, (rows, length) = np.random.default_rng(0), tokens.shape
    arrays = {"input_ids": tokens, "attention_mask": np.ones((rows, length + past), np.int64)}
    arrays["position_ids"] = np.arange(past, past + length)[None]
    inputs = onnxruntime.InferenceSession(path).get_inputs()
    for each in inputs:
        if each.name.startswith("past"):
            shape = (rows, each.shape[1], past, each.shape[3])
            arrays[each.name] = random.standard_normal(shape).astype(np.float32)
    return {each.name: arrays[each.name] for each in inputs}


def sentences(folder: Path) -> Iterator[tuple[str, Case]]:
    model, texts = (str(EXAMPLES / "sentence_encoder" / n) for n in ("model", "evaluation.txt"))
    path = by_command(folder / "sentences.onnx", model, "--data", texts)
    yield "sentence encoder, trained", (path, None)


def bert(folder: Path) -> Iterator[tuple[str, Case]]:
    config = transformers.BertConfig(vocab_size=2000, intermediate_size=128, **SMALL)
    names, batch = ("input_ids", "attention_mask"), (ids(), torch.ones(4, 24, dtype=torch.int64))
    encoder = First(transformers.BertModel(config), *names)
    yield "encoder, random BERT", by_call(folder / "bert.onnx", encoder, batch)
    cross = First(transformers.BertForSequenceClassification(config), *names)
    yield "cross-encoder, random BERT", by_call(folder / "cross.onnx", cross, batch)


def whisper(folder: Path) -> Iterator[tuple[str, Case]]:
    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, vocab_size=2000,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, max_source_positions=100,
    )  # fmt: skip
    model = First(transformers.WhisperForConditionalGeneration(config), "input_features",
                  "decoder_input_ids")  # fmt: skip
    sound = torch.randn(2, 80, 200, generator=torch.Generator().manual_seed(0))
    yield "Whisper, random", by_call(folder / "whisper.onnx", model, (sound, ids(2, 12)))


def t5(folder: Path) -> Iterator[tuple[str, Case]]:
    config = transformers.T5Config(
        vocab_size=2000, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4
    )
    model = First(transformers.T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids")
    yield "T5, random", by_call(folder / "t5.onnx", model, (ids(2, 20), ids(2, 12)))


def vit(folder: Path) -> Iterator[tuple[str, Case]]:
    config = transformers.ViTConfig(image_size=64, patch_size=16, intermediate_size=128, **SMALL)
    model = First(transformers.ViTForImageClassification(config), "pixel_values")
    yield "ViT, random", by_call(folder / "vit.onnx", model, (images(64),))


def cnn(folder: Path) -> Iterator[tuple[str, Case]]:
    digits = EXAMPLES / "digits"
    weights = ("--weights", str(digits / "weights.safetensors"), "--data", "calib_data/digits")
    path = by_command(folder / "digits.onnx", "examples.digits.network:digits_net", *weights)
    yield "CNN, trained: digits", (path, None)
    config = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.35)
    mobile = First(transformers.MobileNetV2ForImageClassification(config), "pixel_values")
    yield "CNN, random: MobileNetV2", by_call(folder / "mobile.onnx", mobile, (images(64),))
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic"
    )
    resnet = First(transformers.ResNetForImageClassification(config), "pixel_values")
    yield "CNN, random: ResNet", by_call(folder / "resnet.onnx", resnet, (images(64),))


GROUPS: tuple[Callable[[Path], Iterator[tuple[str, Case]]], ...] = (
    *(decoder, sentences, bert, whisper, t5, vit, cnn),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print("| network | nodes | on the CPU | copies | worst output, dB | same argmax |")
    print("|---|---|---|---|---|---|")
    for group in GROUPS:
        if chosen.only and group.__name__ not in chosen.only.split(","):
            continue
        torch.manual_seed(0)
        try:
            for name, (path, data) in group(chosen.folder):
                print(_row(name, qtool.verify_on_webgpu(path, data)), flush=True)
        except (qtool.QtoolError, subprocess.CalledProcessError) as error:
            print(f"| {group.__name__} | {error} |", flush=True)


def _row(name: str, compared: qtool.WebGpuComparison) -> str:
    worst = min(o.sqnr_db for o in compared.outputs if o.sqnr_db is not None)
    first, place = compared.outputs[0], compared.placement
    nodes = (str(place.nodes), ", ".join(place.fallbacks) or "0", str(place.copies))
    same = f"{first.same_argmax} of {first.rows}"
    rest = "" if compared.first is None else f"; {compared.first}"
    return f"| {name} | {' | '.join(nodes)} | {worst:.1f}{rest} | {same} |"


if __name__ == "__main__":
    main()
