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

import networks
import numpy as np
import onnx
import torch
from torch import nn

from benchmarks.packages.networks import NETWORKS
from benchmarks.packages.one_network import convert

__all__ = ["Command", "CommandError", "language_folders", "packaged"]

ROOT = Path(__file__).parents[2]
SAMPLES = 48
"""Calibration samples of a packaged network."""
BLOCK = "1"
"""MiB of float32 weights in a block: the models here have 3 to 5."""
CACHED = ("--task", "text-generation-with-past")
INT4 = ("--mode", "weight-only-int4")

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
    sizes = {"memory": ("quantize", "--seconds", "0"), "blocks": ("blockwise", "--block", BLOCK)}
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
    import folders
    import transformers

    networks.let_torchvision_import()
    made = {"llama": folders.LLAMA, "qwen": folders.QWEN, "bert": folders.BERT}[kind]
    torch.manual_seed(0)
    for part in made(transformers):
        part.save_pretrained(scratch / kind)
    texts = str(ROOT / "examples/language_model/calibration.txt")
    return scratch / kind, (texts, "--samples", "16", "--max-length", "48")


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


def packaged(packages: Path) -> dict[str, Command]:
    """Trained networks out of public packages by the plain command; those that are unpacked."""
    here = [n for n, network in NETWORKS.items() if (packages / network.file).exists()]
    return {f"packaged-{n}": partial(_packaged, n, packages.resolve()) for n in here}


def _packaged(name: str, packages: Path, out: Path) -> None:
    row: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        convert(NETWORKS[name], SAMPLES, sys.executable, packages, Path(folder), row)
        if row["outcome"] != "ok":
            raise CommandError(row["refusals"][-1])
        shutil.copytree(Path(folder) / "out", out, dirs_exist_ok=True)
