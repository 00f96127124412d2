"""Calibration and GPTQ on a CUDA device: time, peak memory, and the codes of the CPU.

    PYTHONPATH=. python benchmarks/cuda.py [--page PAGE] [--dry-run]

1. The tests with the marker `cuda`.
2. A decoder of random weights with 50 million parameters, static int8 with `gptq`, converted on the
   CPU, on the device, and on the CPU with the values of the embedding one unit in the last place
   higher or lower. The plans are equal. Sums on a device have another order, so that results differ
   by such units: the shares of codes that differ from the first conversion are printed side by
   side, with the largest difference of a code.
3. A decoder of 1.0 billion parameters on the device: seconds and peak memory of the capture, of the
   calibration, and of the conversion with `gptq`, static int8 and 4-bit weights.

It needs no network and no package beyond qtool's own. `--dry-run` does the same with small networks
on the CPU; peaks of memory are left out there.
"""

# ruff: noqa: E402  # the path comes first
from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # and not this folder: torch imports a package `cuda`, not this file
elif __name__ == "cuda":  # by torch, in another script of this folder
    raise ImportError("this file is a benchmark, and not the package of that name")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qtool
from benchmarks.rows import measured_on
from qtool.evaluation.machine import this_machine

GIB = 2**30
TWIN_MODE, MODES = "static", ("static", "weight-only-int4")
LENGTH, TEXTS_AT_ONCE = 128, 16


@dataclass(frozen=True)
class Size:
    """A decoder: size of the vocabulary, width, heads, width of the feed-forward layers, layers;
    and how many texts it is calibrated with."""

    vocabulary: int
    width: int
    heads: int
    inner: int
    layers: int
    texts: int


TWIN = Size(8192, 512, 8, 1408, 13, 64)
BILLION = Size(32000, 2048, 16, 5632, 17, 128)
DRY = Size(512, 64, 4, 128, 2, 64)


class Layer(nn.Module):
    """Attention and a gated feed-forward network, each behind a normalization."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, inner = size.width, size.inner
        self.heads = size.heads
        self.norm, self.inner_norm = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        query, key, value = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        y = self.inner_norm(x)
        inner: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + inner


class Decoder(nn.Module):
    """[texts, tokens] -> [texts, tokens, vocabulary]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, 1e-6)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def decoder(size: Size, device: str) -> Decoder:
    """Weights are drawn on the CPU, so that they are the same on every device."""
    torch.manual_seed(0)
    return Decoder(size).eval().to(device)


def in_the_last_place(model: Decoder) -> Decoder:
    """Move each value of the embedding to the next float, up or down."""
    values = model.embedding.weight.data
    towards = torch.where(torch.rand(values.shape) < 0.5, -torch.inf, torch.inf)
    values.copy_(values.nextafter(towards))
    return model


def parameters(model: nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:,.0f} million parameters"


def texts(size: Size, length: int) -> list[Tensor]:
    """Random tokens on the CPU, in batches."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, size.vocabulary, (size.texts, length), generator=draw)
    return list(tokens.split(TEXTS_AT_ONCE))


def codes(model: Any) -> dict[str, Tensor]:
    """The integers that the file would store, on the CPU."""
    values = model.qdq.state_dict()
    return {n: v.cpu() for n, v in values.items() if not v.is_floating_point() and v.numel() > 1}


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """The share of codes that differ, and the largest difference.

    Raises:
        ValueError: names or shapes differ.
    """
    if {n: t.shape for n, t in one.items()} != {n: t.shape for n, t in other.items()}:
        raise ValueError("the files store other tensors")
    apart = [(one[n].int() - other[n].int()).abs() for n in one]
    changed = sum(int(a.count_nonzero()) for a in apart)
    share = changed / sum(a.numel() for a in apart)
    return f"{100 * share:.4f} %, {max(int(a.max()) for a in apart)}"


@contextmanager
def stage(name: str, device: str, rows: list[str]) -> Iterator[None]:
    """Add a row of seconds and of the peak memory of the device, in GiB."""
    on_device = device != "cpu"
    if on_device:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    yield
    peak = "-"
    if on_device:
        torch.cuda.synchronize()
        peak = f"{torch.cuda.max_memory_allocated() / GIB:.1f}"
    rows.append(f"| {name} | {time.perf_counter() - begin:.1f} | {peak} |")
    print(rows[-1], flush=True)


def twins(size: Size, length: int, device: str) -> list[str]:
    """Compare the conversions of a decoder on two devices, and of one that differs by roundings.

    Raises:
        ValueError: the plans differ.
    """
    data = texts(size, length)
    rows: list[str] = []

    def convert(name: str, model: Decoder, where: str) -> Any:
        with stage(name, where, rows):
            return qtool.quantize(model, data, mode=TWIN_MODE, recover=["gptq"])

    plain = convert("CPU", decoder(size, "cpu"), "cpu")
    there = convert(f"device ({device})", decoder(size, device), device)
    moved = convert("CPU, embedding moved", in_the_last_place(decoder(size, "cpu")), "cpu")
    digests = {m.plan.digest for m in (plain, there, moved)}
    if len(digests) > 1:
        raise ValueError(f"the plans differ: {sorted(digests)}")
    own = codes(plain)
    count = sum(t.numel() for t in own.values())
    return [
        f"| {parameters(decoder(size, 'cpu'))}, {TWIN_MODE} with gptq | seconds | GiB |",
        "| --- | --- | --- |",
        *rows,
        "",
        f"One plan. Of {count:,} codes differ from those of the CPU, and at most by:",
        "",
        f"- on the device ({device}): {difference(own, codes(there))}",
        f"- on the CPU, embedding moved: {difference(own, codes(moved))}",
        "",
    ]


def billion(size: Size, length: int, device: str) -> list[str]:
    """Measure the stages of the conversions of a large decoder."""
    rows: list[str] = []
    model, data = decoder(size, device), texts(size, length)
    with stage("capture", device, rows):
        captured = qtool.capture_model(model, data[0])
    for mode in MODES:
        with stage(f"{mode}: calibration", device, rows):
            calibration = qtool.calibrate(captured, data, mode=mode, recover=["gptq"])
        with stage(f"{mode}: conversion with gptq", device, rows):
            qtool.convert(captured, calibration)
    title = f"| {parameters(model)}, {size.texts} texts of {length} tokens |"
    return [f"{title} seconds | GiB |", "| --- | --- | --- |", *rows, ""]


def run_tests() -> str:
    """Run the tests that need a device.

    Raises:
        subprocess.CalledProcessError: one failed, or there are none.
    """
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda", "tests"]
    done = subprocess.run(words, check=False, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    print(done.stdout[-2000:], flush=True)
    done.check_returncode()
    return done.stdout.splitlines()[-1].strip("= ")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, help="write the tables there, as Markdown")
    parser.add_argument("--dry-run", action="store_true", help="small networks on the CPU")
    options = parser.parse_args(words)
    dry = options.dry_run
    if not dry and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --dry-run needs none")
    device = "cpu" if dry else "cuda"
    lines = [
        "# On a CUDA device",
        "",
        f"Made by `python benchmarks/cuda.py{' --dry-run' if dry else ''}`; its text says how.",
        "",
        *([] if dry else [torch.cuda.get_device_name()]),
        measured_on([{"machine": this_machine().__dict__}]),
        "",
    ]
    if not dry:
        lines += [f"Tests: {run_tests()}", ""]
    length = 32 if dry else LENGTH
    lines += twins(DRY if dry else TWIN, length, device)
    lines += billion(DRY if dry else BILLION, length, device)
    print("\n".join(lines))
    if options.page:
        options.page.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
