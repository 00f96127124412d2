"""Detectors: SQNR lost by joining boxes and scores at the end, and share of MACs in integers.

    python benchmarks/detectors.py [--networks yolov5,retinanet]

Torchvision's detectors without the selection of boxes, YOLOs that decode their boxes; see
unseen/detection.py; and transformers' DETR on a ResNet-50, which selects no boxes. Weights are
random, but BatchNorms have statistics of the data. Each network is converted twice with
accuracy "fast", both files run in ONNX Runtime: whole, and cut in front of the last concats, whose
float nodes then join what the cut file gives. So *before* is the signal-to-noise ratio of boxes
and scores without any loss by joining, *whole* what the file has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
import torch
from onnx.utils import Extractor
from torch import Tensor, nn

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.frontends.onnx import load_onnx

sys.path.insert(0, str(Path(__file__).parent / "unseen"))
networks.let_torchvision_import()

from detection import DETECTION  # noqa: E402 - of the folder above
from network import images  # noqa: E402

BATCHES, BATCH, HELD_OUT = 4, 4, 8
MOVES = {"Concat", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten"}
Arrays = Sequence[np.ndarray[Any, Any]]
Parts = Callable[[Arrays], dict[str, Arrays]]


@dataclass(frozen=True)
class Detector:
    """build: the network. parts: which outputs, or parts of them, are what."""

    build: Callable[[], nn.Module]
    size: int
    parts: Parts


def _joined(axis: int) -> Parts:
    """One output; the first four along an axis are the box."""

    def parts(outputs: Arrays) -> dict[str, Arrays]:
        boxes, scores = np.split(outputs[0], [4], axis)
        return {"boxes": [boxes], "scores": [scores]}

    return parts


def _apart(*names: str) -> Parts:
    """An output for each of these."""
    return lambda outputs: {n: [o] for n, o in zip(names, outputs, strict=True)}


class Detr(nn.Module):
    """DETR, its sizes the published ones: logits and boxes, a row for each of 100 queries."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

        backbone = ResNetConfig(out_features=["stage4"])
        self.whole = DetrForObjectDetection(DetrConfig(backbone_config=backbone))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.whole(x)
        return found.logits, found.pred_boxes


DETECTORS = {
    "ssdlite320_mobilenet_v3_large": Detector(
        DETECTION["tv_ssdlite320_mnv3_head"].build, 320, _apart("boxes", "scores")
    ),
    "retinanet_resnet50_fpn": Detector(
        DETECTION["tv_retinanet_resnet50_head"].build, 128, _apart("scores", "boxes")
    ),
    "fcos_resnet50_fpn": Detector(
        DETECTION["tv_fcos_resnet50_head"].build, 128, _apart("scores", "boxes", "centre-ness")
    ),
    "yolov5": Detector(DETECTION["yolov5"].build, 320, _joined(-1)),
    "yolov8": Detector(DETECTION["yolov8"].build, 320, _joined(1)),
    "yolox": Detector(DETECTION["yolox_raw"].build, 320, _joined(-1)),
    "detr": Detector(Detr, 256, _apart("scores", "boxes")),
}


@dataclass(frozen=True)
class Found:
    """One network. noise: part -> (before, whole), dB. ranges: part -> its extremes in float."""

    noise: dict[str, tuple[float, float]]
    ranges: dict[str, tuple[float, float]]
    share: float


def measured(detector: Detector, folder: Path) -> Found:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    drawn = images(3, detector.size, detector.size)
    model = detector.build()
    data = [drawn(BATCH, generator)["x"] for _ in range(BATCHES)]
    _settle(model, data)
    held_out = [drawn(HELD_OUT, generator)["x"].numpy()]
    whole, before, after = (folder / f"{name}.onnx" for name in ("whole", "before", "after"))
    qtool.capture_model(model, data[0]).export_float(whole)
    _cut(whole, before, after)
    real = run(session(whole), held_out)
    _, joined = _converted(before, data, held_out)
    joined = run(session(after), joined)
    share, coded = _converted(whole, data, held_out)
    parts = [detector.parts(outputs) for outputs in (real, joined, coded)]
    noise = {n: (_decibels(p, parts[1][n]), _decibels(p, parts[2][n])) for n, p in parts[0].items()}
    ranges = {n: (float(p[0].min()), float(p[0].max())) for n, p in parts[0].items()}
    return Found(noise, ranges, share)


def _settle(model: nn.Module, data: Sequence[torch.Tensor]) -> None:
    """BatchNorms take the statistics of the data."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
        elif hasattr(module, "running_var"):  # a frozen one, of DETR
            module.register_forward_pre_hook(_frozen)
    model.train()
    with torch.no_grad():
        for _ in range(2):
            for batch in data:
                model(batch)
    model.eval()
    for module in model.modules():
        module._forward_pre_hooks.clear()


def _frozen(module: Any, inputs: tuple[Tensor]) -> None:
    module.running_var, module.running_mean = torch.var_mean(inputs[0], (0, 2, 3))


def _cut(whole: Path, before: Path, after: Path) -> None:
    """A file up to what the last concats join, and one of these and what only moves it."""
    model = onnx.load(whole)
    made = {o: n for n in model.graph.node for o in n.output}
    ends = [o.name for o in model.graph.output]
    leaves = list(dict.fromkeys(leaf for end in ends for leaf in _leaves(end, made)))
    extract = Extractor(onnx.shape_inference.infer_shapes(model))
    onnx.save(extract.extract_model([i.name for i in model.graph.input], leaves), before)
    onnx.save(extract.extract_model(leaves, ends), after)


def _leaves(name: str, made: dict[str, onnx.NodeProto]) -> Iterator[str]:
    node = made.get(name)
    if node is None or node.op_type not in MOVES:
        yield name
        return
    for read in node.input if node.op_type == "Concat" else node.input[:1]:
        yield from _leaves(read, made)


def _converted(file: Path, data: Sequence[torch.Tensor], held_out: Arrays) -> tuple[float, Arrays]:
    """The share of MACs in integers, and outputs."""
    made = file.with_suffix(".int8.onnx")
    quantized = qtool.quantize(qtool.capture_model(load_onnx(file), data[0]), data, accuracy="fast")
    verified = quantized.export(made)
    assert verified is not None
    return verified.coverage.share, run(session(made), held_out)


def _decibels(real: Arrays, found: Arrays) -> float:
    signal = sum(float(np.square(a, dtype=np.float64).sum()) for a in real)
    noise = sum(
        float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(real, found, strict=True)
    )
    return 10 * float(np.log10(signal / noise))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(DETECTORS))
    print("| network | MACs in integers | part | range | before, dB | whole, dB |")
    print("|---|---:|---|---:|---:|---:|")
    for name in parser.parse_args().networks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = measured(DETECTORS[name], Path(folder))
        for part, (before, whole) in found.noise.items():
            low, high = found.ranges[part]
            cells = [name, f"{found.share:.2%}", part, f"{low:.3g} to {high:.3g}"]
            cells += [f"{before:.2f}", f"{whole:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
