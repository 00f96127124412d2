"""Speed of integer operators over float in onnxruntime-web (node, one thread), and of this machine.

    python benchmarks/web_operators.py [--only conv,middle] [--cases REGEX] [--runtime node]

Every case is a small network with random weights. Three files run in turns: all in float, all in
integers, and in integers but for the operator in question, which a recipe leaves in float with what
it costs to dequantize in front of it and to quantize behind it. "operator" is the time of the third
file over that of the second: below 1 the operator is better left in float. Linear layers have a
file for each mode instead.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qtool
from qtool.evaluation.latency.interleaved_timing import Timing, time_files

MODES = ("static", "dynamic", "weight-only", "weight-only-int4")
PAIR = ("float", "integer", "operator in float")


class Between(nn.Module):
    """An operator between 1x1 convolutions, some times one after another."""

    def __init__(self, width: int, middle: Callable[[int], nn.Module], blocks: int = 3) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(blocks))
        self.middle = nn.ModuleList(middle(width) for _ in range(blocks))
        self.last = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for before, middle in zip(self.before, self.middle, strict=True):
            x = middle(before(x))
        return self.last(x)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Joined(nn.Module):
    """A function of two results of convolutions."""

    def __init__(self, width: int, join: Callable[[Tensor, Tensor], Tensor], out: int) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.join, self.after = join, nn.Conv2d(out, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.join(self.left(x), self.right(x)))


def dense(width: int, size: int, kernel: int, groups: int = 1) -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups) for _ in range(4)]
    return nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU()))), image(width, size)


def image(width: int, size: int) -> Tensor:
    return torch.randn(1, width, size, size)


def depthwise(kernel: int, stride: int = 1) -> Callable[[int], nn.Module]:
    return lambda width: nn.Sequential(
        nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width), nn.ReLU()
    )


def grouped(groups: int) -> Callable[[int], nn.Module]:
    return lambda width: nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, groups=groups), nn.ReLU())


class Stem(nn.Module):
    """The first convolution of an image network with the next layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.middle = nn.Conv2d(3, width, 3, 2, 1)
        self.rest = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.middle(x))


def function(call: Callable[[Tensor], Tensor]) -> Callable[[int], nn.Module]:
    return lambda _: Function(call)


def joined(call: Callable[[Tensor, Tensor], Tensor], times: int = 1) -> Callable[[int], nn.Module]:
    return lambda width: Joined(width, call, times * width)


CONVS = {
    "dense 3x3, 16 channels, 32x32": dense(16, 32, 3),
    "dense 3x3, 64 channels, 16x16": dense(64, 16, 3),
    "dense 3x3, 64 channels, 56x56": dense(64, 56, 3),
    "dense 3x3, 256 channels, 14x14": dense(256, 14, 3),
    "dense 1x1, 32 channels, 56x56": dense(32, 56, 1),
    "dense 1x1, 96 channels, 28x28": dense(96, 28, 1),
    "dense 1x1, 384 channels, 14x14": dense(384, 14, 1),
}
MIDDLE = {
    f"grouped 3x3, {width} channels in {groups} groups, {size}x{size}": (
        Between(width, grouped(groups)),
        image(width, size),
    )
    for width, groups, size in ((64, 8, 28), (64, 2, 28), (128, 32, 28), (256, 32, 14))
}
MIDDLE |= {
    f"stem 3 to {width} channels, stride 2, {size}x{size}": (Stem(width), image(3, size))
    for width, size in ((16, 96), (32, 224))
}
MIDDLE |= {
    f"depthwise {k}x{k}, stride {s}, {width} channels, {size}x{size}": (
        Between(width, depthwise(k, s), 1 if s > 1 else 3),
        image(width, size),
    )
    for k, s, width, size in (
        (3, 1, 32, 56),
        (3, 1, 96, 28),
        (3, 1, 384, 14),
        (3, 1, 576, 7),
        (3, 2, 96, 56),
        (3, 2, 192, 28),
        (5, 1, 96, 28),
        (7, 1, 96, 28),
    )
}
OTHERS = {
    "add": joined(torch.add),
    "mul": joined(torch.mul),
    "concat": joined(lambda a, b: torch.cat([a, b], 1), 2),
    "sigmoid": function(torch.sigmoid),
    "leaky_relu": function(lambda x: F.leaky_relu(x, 0.1)),
    "silu": function(F.silu),
    "gelu": function(F.gelu),
    "tanh": function(torch.tanh),
    "max_pool": function(lambda x: F.max_pool2d(x, 3, 1, 1)),
    "average_pool": function(lambda x: F.avg_pool2d(x, 3, 1, 1)),
    "average_pool, padding not counted": function(
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    ),
    "global_average_pool": function(lambda x: x * F.adaptive_avg_pool2d(x, 1)),
}
SIZES = ((64, 28), (256, 14))


def in_pairs(options: argparse.Namespace) -> Iterator[tuple[str, nn.Module, Tensor, str]]:
    """Name, network, input, and the operator in question."""
    if "conv" in options.only:
        for name, (net, x) in CONVS.items():
            yield name, net, x, ""
    if "middle" in options.only:
        for name, (net, x) in MIDDLE.items():
            yield name, net, x, "middle"
    if "others" in options.only:
        for name, make in OTHERS.items():
            for width, size in SIZES:
                title = f"{name}, {width} channels, {size}x{size}"
                part = "middle" if name.startswith("average_pool") else name
                yield title, Between(width, make), image(width, size), part


def rules(part: str) -> list[dict[str, str]]:
    if part == "middle":
        return [{"select": "middle*", "as": "float"}]
    return [{"op": part, "as": "float"}]


def measure_pairs(folder: Path, options: argparse.Namespace) -> None:
    for name, net, x, part in in_pairs(options):
        if not re.match(options.cases, name):
            continue
        captured = qtool.capture_model(net.eval(), x)
        files = [captured.export_float(folder / "float.onnx"), folder / "integer.onnx"]
        qtool.quantize(captured, [x], accuracy="fast").export(files[1])
        if part:
            files.append(folder / "part.onnx")
            made = qtool.quantize(captured, [x], accuracy="fast", recipe=rules(part))
            made.export(files[2])
        show(name, PAIR, files, x, options)


def measure_linear(folder: Path, options: argparse.Namespace) -> None:
    for width, rows in ((256, 1), (256, 16), (256, 128), (768, 1), (768, 16), (768, 128)):
        layers = (m for _ in range(3) for m in (nn.Linear(width, width), nn.ReLU()))
        x = torch.randn(1, rows, width)
        captured = qtool.capture_model(nn.Sequential(*layers).eval(), x)
        files = [captured.export_float(folder / "float.onnx")]
        for mode in MODES:
            files.append(folder / f"{mode}.onnx")
            qtool.quantize(captured, [x], mode=mode, accuracy="fast").export(files[-1])
        show(f"linear {width} to {width}, {rows} rows", ("float", *MODES), files, x, options)


def show(
    name: str, names: tuple[str, ...], files: list[Path], x: Tensor, options: argparse.Namespace
) -> None:
    for runtime in options.runtime:
        found = time_files(files, [x.numpy()], runtime=runtime, seconds=options.seconds)
        cells = [f"{found.models[0].median:.3f} ms"]
        cells += [f"{n} {ratio(found, i)}" for i, n in enumerate(names[: len(files)]) if i]
        if names == PAIR and len(files) == len(PAIR):
            cells.append(f"operator {found.ratios[1].median / found.ratios[2].median:.2f}")
        print(f"{name} | {runtime} | {' | '.join(cells)}", flush=True)


def ratio(found: Timing, i: int) -> str:
    own = found.ratios[i]
    return f"{own.median:.2f}x ({own.low:.2f} to {own.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--only", type=names, default="conv,middle,others,linear")
    parser.add_argument("--cases", default="", help="a regular expression that names match")
    parser.add_argument("--runtime", type=names, default="node,onnxruntime")
    parser.add_argument("--seconds", type=float, default=2.0, help="for all files of a case")
    options = parser.parse_args()
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        measure_pairs(Path(folder), options)
        if "linear" in options.only:
            measure_linear(Path(folder), options)


if __name__ == "__main__":
    main()
