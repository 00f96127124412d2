"""Conversions by the command: each makes its input in a scratch folder and writes to another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from benchmarks.networks.make import make_file
from benchmarks.networks.measure import workplace
from benchmarks.networks.sets import SETS
from benchmarks.networks.subject import Places
from benchmarks.realdata import let_torchvision_import

__all__ = ["Command", "CommandError", "language_folders", "packaged"]

ROOT = Path(__file__).parents[2]
SAMPLES = 48
"""Calibration samples of a packaged network."""
SMALL = "10MiB"
"""Memory for blocks of 1 MiB of float32 weights: the models here have 3 to 5."""
CACHED = ("--task", "text-generation-with-past")
INT4 = ("--mode", "weight-only-int4")
TEXTS = ROOT / "examples/language_model/calibration.txt"
WORDS = 2000
WIDE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS}
FULL = {**WIDE, "intermediate_size": 256}
DECODER = {**FULL, "num_key_value_heads": 2, "max_position_embeddings": 512}
FOLDERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("BertForSequenceClassification", FULL),
    "llama": ("LlamaForCausalLM", DECODER),
    "qwen": ("Qwen3ForCausalLM", {**DECODER, "head_dim": 32}),
}

Command = Callable[[Path], None]


class CommandError(Exception):
    """A command that ended with an error; the text is the end of what it said."""


VARIANTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "llama-static": ("llama", ()),
    "llama-fast": ("llama", ("--accuracy", "fast")),
    "llama-best": ("llama", ("--accuracy", "best")),
    "llama-dynamic": ("llama", ("--mode", "dynamic")),
    "llama-int8": ("llama", ("--mode", "weight-only")),
    "llama-int4": ("llama", INT4),
    "llama-int4-best": ("llama", (*INT4, "--accuracy", "best")),
    "llama-cache-static": ("llama", CACHED),
    "llama-cache-int8": ("llama", (*CACHED, "--mode", "weight-only", "--cache", "int8")),
    "llama-cache-int4": ("llama", (*CACHED, *INT4)),
    "qwen-cache-int4": ("qwen", (*CACHED, *INT4)),
    "qwen-static": ("qwen", ()),
    "bert-static": ("bert", ()),
    "bert-int4": ("bert", INT4),
    "cnn-static": ("cnn", ()),
    "cnn-int4": ("cnn", INT4),
}
"""Name -> the model, and the words of the command."""


def language_folders() -> dict[str, Command]:
    """Small folders of transformers, and an ONNX file, in memory and by blocks.

    Their weights are random; they are made anew for each case.
    """
    plain = ("quantize", "--seconds", "0")
    sizes = {"memory": plain, "blocks": (*plain, "--memory", SMALL)}
    return {
        f"{size}-{name}": partial(_convert, kind, (*words, *more))
        for size, words in sizes.items()
        for name, (kind, more) in VARIANTS.items()
    }


def _convert(kind: str, words: Sequence[str], out: Path) -> None:
    with TemporaryDirectory() as scratch:
        model, data = _cnn(Path(scratch)) if kind == "cnn" else _folder(Path(scratch), kind)
        asked = [words[0], str(model), "--data", *data, "-o", str(out / "model.onnx"), *words[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "qtool", *asked],
            cwd=scratch,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise CommandError(" ".join(done.stderr.split())[-400:])


def _folder(scratch: Path, kind: str) -> tuple[Path, Sequence[str]]:
    """A folder of transformers, and the words after --data."""
    let_torchvision_import()
    import transformers

    name, options = FOLDERS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, name)
    model(model.config_class(**options)).save_pretrained(scratch / kind)
    _tokenizer(transformers).save_pretrained(scratch / kind)
    return scratch / kind, (str(TEXTS), "--samples", "16", "--max-length", "48")


def _tokenizer(library: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pad, unknown, end = special = ["[PAD]", "[UNK]", "[SEP]"]
    made = Tokenizer(models.BPE(unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.train([str(TEXTS)], trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special))
    names = {"pad_token": pad, "unk_token": unknown, "eos_token": end}
    return library.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _cnn(scratch: Path) -> tuple[Path, Sequence[str]]:
    """An ONNX file with its weights in a second file, and the words after --data."""
    widths = (3, 64, 128, 256, 256)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, o in pairwise(widths):
        layers += [nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * widths[-1], 10)).eval()
    images = torch.randn(64, 3, 32, 32)
    batch = {"dynamic_axes": {"x": {0: "N"}}, "input_names": ["x"]}
    file = scratch / "float.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (images[:2],), str(file), dynamo=False, **batch)
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="float.data")
    np.savez(scratch / "images.npz", x=images.numpy())
    return file, (str(scratch / "images.npz"),)


def packaged(folder: Path) -> dict[str, Command]:
    """Trained networks out of public packages by the plain command; those that are unpacked."""
    places = Places(folder.resolve(), folder.resolve())
    here = [name for name, subject in SETS["packaged"]().items() if subject.is_here(places)]
    return {f"packaged-{n}": partial(_packaged, n, places) for n in here}


def _packaged(name: str, places: Places, out: Path) -> None:
    with TemporaryDirectory() as folder:
        subject = SETS["packaged"]()[name]
        work, _ = workplace("packaged", subject, SAMPLES, places, sys.executable, Path(folder))
        row = make_file(work, "qtool", places.packages / subject.needs)
        if "error" in row:
            raise CommandError(row["error"])
        shutil.copytree(Path(folder) / "by-qtool", out, dirs_exist_ok=True)
