"""Speed of whole networks in onnxruntime-web (node, one thread) over float, and on this machine.

    python benchmarks/web_networks.py [--only mobilenet,resnet,sentences,text]

MobileNetV2 and ResNet-20 have random weights; the sentence encoder and the language model are those
of examples/. Files run in turns, and each ratio is the median of pairs of one round. A language
model is timed with a prompt and with a step.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import qtool
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.decoding import phases
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

EXAMPLES = Path(__file__).parents[1] / "examples"
TARGETS = ("onnxruntime", "onnxruntime-web")
MODES = ("static", "dynamic", "weight-only-int4")
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
STAGES += ((6, 160, 3, 2), (6, 320, 1, 1))
"""Of MobileNetV2: expansion, channels, blocks, first stride."""


def layer(width: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[Any]:
    conv = nn.Conv2d(width, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(out)]


class Residual(nn.Module):
    """A branch, added to its input where that has the same shape."""

    def __init__(self, branch: list[nn.Module], skip: bool) -> None:
        super().__init__()
        self.branch, self.skip = nn.Sequential(*branch), skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x) if self.skip else self.branch(x)


def mobilenet() -> nn.Module:
    layers, width = [*layer(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, out, blocks, first in STAGES:
        for block in range(blocks):
            stride, inner = first if block == 0 else 1, width * expansion
            wide = [*layer(width, inner), nn.ReLU6()] if expansion > 1 else []
            middle = [*layer(inner, inner, 3, stride, inner), nn.ReLU6()]
            branch = [*wide, *middle, *layer(inner, out)]
            layers.append(Residual(branch, stride == 1 and width == out))
            width = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *layer(width, 1280), nn.ReLU6(), *head)


def resnet() -> nn.Module:
    layers, width = [*layer(3, 16, 3), nn.ReLU()], 16
    for out in (16, 32, 64):
        for block in range(3):
            stride = 2 if block == 0 and out > 16 else 1
            branch = [*layer(width, out, 3, stride), nn.ReLU(), *layer(out, out, 3)]
            layers += [Residual(branch, stride == 1), nn.ReLU()]
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def settled(net: nn.Module) -> nn.Module:
    """Give BatchNorms statistics of random images."""
    with torch.no_grad():
        for _ in range(10):
            net.train()(torch.randn(8, 3, 64, 64))
    return net.eval()


def measure(name: str, files: dict[str, Path], inputs: list[Any], seconds: float) -> None:
    paths = [*files.values()]
    for phase in phases(paths[0], inputs):
        for runtime in ("node", "onnxruntime"):
            timing = phase.time(paths, runtime=runtime, seconds=seconds)
            cells = [f"{timing.models[0].median:.3f} ms"]
            for title, ratio in zip([*files][1:], timing.ratios[1:], strict=True):
                cells.append(f"{title} {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})")
            print(f"{name}, {timing.what} | {runtime} | {' | '.join(cells)}", flush=True)


def images(name: str, net: nn.Module, size: int, folder: Path, seconds: float) -> None:
    x = torch.randn(8, 3, size, size)
    captured = qtool.capture_model(settled(net), x)
    files = {"float": captured.export_float(folder / "float.onnx")}
    for target in TARGETS:
        files[target] = folder / f"{target}.onnx"
        qtool.quantize(captured, [x], target=target, accuracy="fast").export(files[target])
    measure(f"{name}, {size} x {size}", files, [x[:1].numpy()], seconds)


def texts(example: str, task: str | None, folder: Path, seconds: float) -> None:
    """Measure a model of the examples in every mode, on the longest of its first texts."""
    source = EXAMPLES / example
    model = load_model(source / "model", task=task)
    data = load_data(
        source / "calibration.txt", 8, model=model, folder=source / "model", max_length=96
    )
    first = next(iter(data))
    captured = qtool.capture_model(model, first, data.dynamic)
    files = {"float": captured.export_float(folder / "float.onnx")}
    modes = {f"{mode}, {target}": (mode, target) for target in TARGETS for mode in MODES}
    for name, (mode, target) in modes.items():
        files[name] = folder / f"{mode}-{target}.onnx"
        made = qtool.quantize(captured, [first], mode=mode, target=target, accuracy="fast")
        made.export(files[name])
    arrays = [a[:1] for a in Feeder(files["float"]).arrays(first, 0)]
    measure(example, files, arrays, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="mobilenet,resnet,sentences,text")
    parser.add_argument("--seconds", type=float, default=10.0, help="for all files of a network")
    options = parser.parse_args()
    torch.manual_seed(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if "mobilenet" in options.only:
            images("MobileNetV2", mobilenet(), 96, folder, options.seconds)
            images("MobileNetV2", mobilenet(), 224, folder, options.seconds)
        if "resnet" in options.only:
            images("ResNet-20", resnet(), 32, folder, options.seconds)
        if "sentences" in options.only:
            texts("sentence_encoder", None, folder, options.seconds)
        if "text" in options.only.split(","):
            texts("language_model", "text-generation-with-past", folder, options.seconds)


if __name__ == "__main__":
    main()
