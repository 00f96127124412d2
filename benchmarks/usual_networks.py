"""Usual architectures by the plain command: speed against their float file, at batch 1 and 8.

    pip install --no-deps --target PACKAGES torchvision timm
    PYTHONPATH=PACKAGES python benchmarks/usual_networks.py FOLDER [--only resnet] [--page PAGE]

Weights are random and BatchNorms have statistics of the inputs, so speed and size are those of a
trained network and accuracy is not; SQNR only compares tools. The float file is that of torch.onnx.
Next to qtool's file are those of onnxruntime.quantization (static QDQ, a scale per channel; and
dynamic) from the same 64 samples. Files run in turns on one thread; a ratio is that of thread CPU
times, with the lower end of its 95 % interval (bootstrap of the median). 2 to 5 minutes for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks/rows.py, run as a script

from benchmarks.networks import let_torchvision_import
from benchmarks.rows import add_row, label_of, measured_on, rows_of

SAMPLES, NEW, SECONDS = 64, 64, 10.0
HERE = Path(__file__).parent
Array = np.ndarray[Any, Any]


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        let_torchvision_import()
        import torchvision

        return getattr(torchvision.models, name)(weights=None)

    return build


def _timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        let_torchvision_import()
        import timm

        return timm.create_model(name)

    return build


def _conv(i: int, o: int, k: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    conv = nn.Conv2d(i, o, k, stride, k // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), act())


class _UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [width * 2**i for i in range(4)]
        pairs = list(zip([3, *sizes], sizes, strict=False))
        self.down = nn.ModuleList(nn.Sequential(_conv(i, o), _conv(o, o)) for i, o in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * o, o, 2, 2) for o in sizes[:3])
        self.join = nn.ModuleList(nn.Sequential(_conv(2 * o, o), _conv(o, o)) for o in sizes[:3])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, layers in enumerate(self.down):
            x = layers(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in (2, 1, 0):
            x = self.join[i](torch.cat([self.up[i](x), kept[i]], 1))
        return self.head(x)


class _Split(nn.Module):
    """Part of the channels goes through further layers, and all are joined (YOLOv8)."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        half = width // 2
        self.first = _conv(width, width, 1, act=nn.SiLU)
        two = partial(_conv, half, half, act=nn.SiLU)
        self.layers = nn.ModuleList(nn.Sequential(two(), two()) for _ in range(count))
        self.last = _conv((2 + count) * half, width, 1, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for layers in self.layers:
            parts.append(parts[-1] + layers(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Yolo(nn.Module):
    def __init__(self, w: int = 16) -> None:
        super().__init__()

        def stage(i: int, o: int, count: int, kernel: int = 3, stride: int = 2) -> nn.Module:
            return nn.Sequential(_conv(i, o, kernel, stride, nn.SiLU), _Split(o, count))

        def head(width: int) -> nn.Module:
            two = (_conv(width, 4 * w, act=nn.SiLU), _conv(4 * w, 4 * w, act=nn.SiLU))
            return nn.Sequential(*two, nn.Conv2d(4 * w, 84, 1))

        stem = _conv(3, w, 3, 2, nn.SiLU)
        self.a = nn.Sequential(stem, stage(w, 2 * w, 1), stage(2 * w, 4 * w, 2))
        self.b, self.c = stage(4 * w, 8 * w, 2), stage(8 * w, 16 * w, 1)
        self.join_b, self.join_a = stage(24 * w, 8 * w, 1, 1, 1), stage(12 * w, 4 * w, 1, 1, 1)
        self.heads = nn.ModuleList(head(width) for width in (4 * w, 8 * w, 16 * w))

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        b = self.join_b(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.join_a(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        levels = [h(x).flatten(2) for h, x in zip(self.heads, (a, b, c), strict=True)]
        joined = torch.cat(levels, 2)
        return torch.cat([joined[:, :4].exp().clamp(max=50), joined[:, 4:].sigmoid()], 1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    **{
        name: (_torchvision(name), 224)
        for name in ("resnet50", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0")
    },
    "convnext_atto": (_timm("convnext_atto"), 224),
    "vit_tiny": (_timm("vit_tiny_patch16_224"), 224),
    "unet": (_UNet, 128),
    "yolo": (_Yolo, 256),
}
"""Name -> the network and the size of its images."""


def images(count: int, size: int, seed: int) -> Tensor:
    """Return smooth random images with deviation 1."""
    random = torch.Generator().manual_seed(seed)
    layers = (torch.randn(count, 3, s, s, generator=random) for s in (4, 16, 64))
    total = sum(F.interpolate(x, size=(size, size), mode="bilinear") for x in layers)
    assert isinstance(total, Tensor)
    return total / total.std()


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Return the factory of a network, for the command line."""
    if name not in NETWORKS:
        raise AttributeError(name)
    build, size = NETWORKS[name]

    def factory() -> nn.Module:
        torch.manual_seed(0)
        model = build().train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        with torch.no_grad():
            for seed in (101, 102):
                model(images(8, size, seed))
        return model.eval()

    return factory


def _session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _ratios(files: list[Path], x: Array) -> list[tuple[float, float]]:
    """Return times as fast as the first file, and the lower end of the interval, of the others."""
    sessions = [_session(file) for file in files]
    feeds = [{s.get_inputs()[0].name: x} for s in sessions]
    rounds, end = [], time.time() + SECONDS
    for session, feed in zip(sessions, feeds, strict=True):
        session.run(None, feed)
    while time.time() < end or len(rounds) < 9:
        taken = [0.0] * len(files)
        for i in (*range(len(files)), *reversed(range(len(files)))):
            start = time.thread_time()
            sessions[i].run(None, feeds[i])
            taken[i] += time.thread_time() - start
        rounds.append([taken[0] / t for t in taken[1:]])
    table, random = np.array(rounds), np.random.default_rng(0)
    drawn = np.median(table[random.integers(0, len(table), (2000, len(table)))], 1)
    lower = np.percentile(drawn, 2.5, axis=0)
    return list(zip(np.median(table, 0).tolist(), lower.tolist(), strict=True))


def _sqnr(real: Array, other: Array) -> float:
    return float(10 * np.log10(np.square(real).sum() / np.square(other - real).sum()))


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return the row of a network."""
    size, here = NETWORKS[name][1], str(HERE.parent)
    np.savez(folder / "samples.npz", x=images(SAMPLES, size, 0).numpy())
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=folder, env=environment, check=False, capture_output=True, text=True
        )
        return done.stdout if not done.returncode else done.stderr.strip().splitlines()[-1][:160]

    tool = str(Path(sys.executable).with_name("qtool"))
    factory = f"benchmarks.usual_networks:{name}"
    printed = run(tool, "quantize", factory, "--data", "samples.npz", "-o", "qtool.onnx")
    model = __getattr__(name)()
    torch.onnx.export(
        model,
        (images(2, size, 1),),
        folder / "float.onnx",
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    peer = sys.executable, str(HERE / "packages/peer.py"), "float.onnx"
    said = {m: run(*peer, f"{m}.onnx", m, "samples.npz") for m in ("static", "dynamic")}
    names = [n for n in ("qtool", "static", "dynamic") if (folder / f"{n}.onnx").exists()]
    files = [folder / f"{n}.onnx" for n in ("float", *names)]
    speeds = {b: _ratios(files, images(b, size, 7).numpy()) for b in (1, 8)}
    new = images(NEW, size, 9).numpy()
    outputs = []
    for file in files:
        session = _session(file)
        feed = session.get_inputs()[0].name
        parts = [session.run(None, {feed: new[i : i + 8]})[0] for i in range(0, NEW, 8)]
        outputs.append(np.concatenate(parts))
    row = {
        n: {
            "speed": {str(b): each[i] for b, each in speeds.items()},
            "sqnr": _sqnr(outputs[0], outputs[i + 1]),
            "size": files[i + 1].stat().st_size / files[0].stat().st_size,
        }
        for i, n in enumerate(names)
    }
    outcome = "ok" if "qtool" in names else "failed"
    failed = {mode: text for mode, text in said.items() if mode not in names}
    return {
        "network": name,
        "outcome": outcome,
        "printed": printed,
        "files": row,
        "failed": failed,
    }


def page(rows: list[Any]) -> str:
    """Return the rows as Markdown."""
    doc = (__doc__ or "").split("\n\n")
    head = f"| network | file | batch 1 | batch 8 | size | SQNR |\n|{' --- |' * 6}"
    lines = [f"# {doc[0].strip()}\n\n{doc[2].strip()}\n\n{measured_on(rows)}\n\n{head}"]
    for row in rows:
        for name, file in row["files"].items():
            speeds = (f"{median:.2f} ({low:.2f})" for median, low in file["speed"].values())
            sqnr, size = f"{file['sqnr']:.1f}", f"{file['size']:.2f}"
            lines.append(f"| {' | '.join([row['network'], name, *speeds, size, sqnr])} |")
    lines += [""]
    for row in rows:
        lines += [f"- {row['network']}, {m}, makes no file: {t}" for m, t in row["failed"].items()]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="parts of names of networks")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(options.alone, Path(folder))))
        return
    done = options.folder / label_of(sys.executable)
    for name in NETWORKS:
        if any(word in name for word in options.only.split(",")):
            add_row(done, name, __file__, "--alone", name)
    if options.page:
        options.page.write_text(page(rows_of(done, NETWORKS)), encoding="utf-8")


if __name__ == "__main__":
    main()
