"""Small files of every kind that qtool reads, from which hostile ones are made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import qtool

CANARY = "CANARY"
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "no", "dog", "there", "while", "ran")
MODULE = "qtool_hostile_seeds"
"""A module of the user's, with the network of the weights and a transform."""

_SOURCE = """
import numpy as np
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()

def images():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)).eval()

def tensor(image):
    return torch.from_numpy(np.array(image.convert("RGB").resize((8, 8)))).permute(2, 0, 1) / 255
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def write_seeds(folder: Path) -> None:
    """Write the seeds, and import all that the commands need on the way."""
    (folder / f"{MODULE}.py").write_text(_SOURCE)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 8)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x, labels=np.arange(16) % 4)
    np.save(folder / "labels.npy", np.arange(16) % 4)
    model, data = network(), [torch.from_numpy(x)]
    captured = qtool.capture_model(model, data[0])
    captured.export_float(folder / "m.onnx")
    qtool.quantize(model, data).export(folder / "q.onnx", timing=0)
    qtool.quantize(model, data, target="tflite").export(folder / "q.tflite", timing=0)
    qtool.calibrate(model, data).save(folder / "m.calib")
    torch.save(model.state_dict(), folder / "w.pt")
    save_file(model.state_dict(), folder / "w.safetensors")
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(model, (data[0],), dynamic_shapes=(batch,))
    torch.export.save(program, folder / "m.pt2")
    qtool.verify(folder / "q.tflite")
    qtool.evaluate(folder / "q.onnx", model, data, seconds=0.01)
    shutil.copy(Path(__file__).parents[2] / "reports/sample/report.json", folder)
    (folder / "images").mkdir()
    for i in range(4):
        pixels = random.integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.{'jpg' if i % 2 else 'png'}")
    _write_language_models(folder)
    (folder / "recipe.toml").write_text('[[rules]]\nselect = "0"\nas = "float"\n')
    (folder / "texts.txt").write_text("\n".join(" ".join(WORDS[i:]) for i in range(8)))


def _write_language_models(folder: Path) -> None:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    table = {w: i for i, w in enumerate(("[UNK]", "[CLS]", "[SEP]", "[PAD]", *WORDS))}
    plain = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))  # noqa: S106  # no password
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **names)
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    torch.manual_seed(0)
    networks = {
        "bert": transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=2)),
    }
    for name, network in networks.items():
        network.eval().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    decoder = qtool.load_model(folder / "llama", task="text-generation-with-past")
    data = qtool.load_data(_first_texts(folder), model=decoder, folder=folder / "llama")
    made = qtool.quantize(decoder, data, dynamic=data.dynamic, mode="dynamic")
    made.export(folder / "llama" / "model.onnx", timing=0)
    (folder / "llama" / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    qtool.generate(folder / "llama" / "model.onnx", "the cat", tokens=2)


def _first_texts(folder: Path) -> Path:
    path = folder / "few.txt"
    path.write_text("the cat sat on a mat\nno dog saw the cat while a dog ran")
    return path
