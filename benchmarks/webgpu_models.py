"""Files of the target onnxruntime-webgpu on the WebGPU provider, next to the CPU provider.

    python benchmarks/webgpu_models.py FOLDER [--only decoder,vit]

Needs `qtool emulators install --webgpu` and transformers. Networks of the examples and one decoder,
which is trained here, are trained, the others have random weights. Each is converted with 4-bit
weights, without recovery, and with its convolutions in float. Decoders read 256 tokens of a text
that they are given: in four prompts of 64, and one by one, each behind the cache of all before it.
A row: nodes on the provider, nodes with activations on the CPU provider, copies in a run, the worst
output against the CPU provider at accuracy level 0, and the share of rows with the same largest
value.
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
TOKENS, PROMPT = 256, 64
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
    """Two trained decoders and a random one, prompt and step."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLES / "language_model" / "model")
    tokens = np.array(tokenizer(TEXTS.read_text())["input_ids"][:TOKENS], np.int64)[None]
    sizes = {"vocab_size": len(tokenizer) + 8, "intermediate_size": 128, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(**sizes, **SMALL)
    made = {"random Qwen2": transformers.Qwen2ForCausalLM(config)}
    made["Qwen2 trained here"] = _train(transformers.Qwen2ForCausalLM(config), tokenizer)
    folders = {"Llama of the examples": EXAMPLES / "language_model" / "model"}
    for name, model in made.items():
        folders[name] = folder / name.replace(" ", "-")
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    for name, source in folders.items():
        words = (str(source), "--task", "text-generation-with-past", "--data", str(TEXTS))
        path = by_command(folder / f"{source.name}.onnx", *words, "--max-length", "64")
        session = onnxruntime.InferenceSession(path)
        parts = [tokens[:, i : i + PROMPT] for i in range(0, TOKENS, PROMPT)]
        prompts = [_call(session, part, {}) for part in parts]
        yield f"decoder, {name}: prompt", (path, prompts)
        cache = _cache(session, tokens)
        steps = [
            _call(session, tokens[:, i : i + 1], {k: v[:, :, :i] for k, v in cache.items()})
            for i in range(TOKENS)
        ]
        yield f"decoder, {name}: step", (path, steps)


def _train(model: Any, tokenizer: Any, steps: int = 300, length: int = 64) -> Any:
    """Train a language model for a minute on the calibration text."""
    text = (EXAMPLES / "language_model" / "calibration.txt").read_text()
    ids = torch.tensor(tokenizer(text)["input_ids"])
    generator, optimizer = (
        torch.Generator().manual_seed(0),
        torch.optim.AdamW(model.parameters(), 3e-3),
    )
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - length, (16,), generator=generator)
        batch = torch.stack([ids[s : s + length] for s in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"(Qwen2 trained here: loss {loss.item():.2f} after {steps} steps)", file=sys.stderr)
    return model.eval()


def _call(
    session: onnxruntime.InferenceSession, tokens: np.ndarray, cache: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the inputs of a call with some tokens behind a cache; {} for an empty one."""
    rows, length = tokens.shape
    inputs = {i.name: i for i in session.get_inputs()}
    empty = {
        name: np.zeros((rows, i.shape[1], 0, i.shape[3]), np.float32)
        for name, i in inputs.items()
        if name.startswith("past")
    }
    arrays = {**empty, **{k: np.ascontiguousarray(v) for k, v in cache.items()}}
    past = next(iter(arrays.values())).shape[2]
    arrays |= {"input_ids": tokens, "position_ids": np.arange(past, past + length)[None]}
    arrays["attention_mask"] = np.ones((rows, past + length), np.int64)
    return {name: arrays[name] for name in inputs}


def _cache(session: onnxruntime.InferenceSession, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the keys and values of a text by the names of the inputs."""
    results = session.run(None, _call(session, tokens, {}))
    names = [o.name for o in session.get_outputs()]
    return {
        name.replace("present", "past_key_values"): array
        for name, array in zip(names, results, strict=True)
        if name.startswith("present")
    }


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
                print(
                    _row(name, qtool.verify_on_webgpu(path, data, samples=TOKENS, timeout=3600)),
                    flush=True,
                )
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
