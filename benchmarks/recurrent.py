"""Speed of an LSTM in mode "dynamic" and with int8 weights alone over float in ONNX Runtime.

    python benchmarks/recurrent.py [--hidden 128,256,512] [--batch 1] [--steps 64] [--bare]

As many inputs as the state is wide, random weights. Files run in turns, and each ratio is the
median of pairs of one round, so that a busy machine slows all alike. `--bare`: the runtime's two
kernels in files of one node, made without qtool: what there is to gain.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import qtool
from qtool.evaluation.latency.interleaved_timing import Timing, time_files

MODES = ("dynamic", "weight-only")
BARE = ("bare, float", "bare, a scale each", "bare, one scale")


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


def bare(hidden: int, options: argparse.Namespace, axes: tuple[int, ...] | None) -> onnx.ModelProto:
    """One node: LSTM, or DynamicQuantizeLSTM with a scale for what remains without these axes."""
    draw = np.random.default_rng(0)
    weights = draw.uniform(-1, 1, (2, 1, 4 * hidden, hidden)).astype(np.float32) / hidden**0.5
    stored, domain, op_type = {"W": weights[0], "R": weights[1]}, "", "LSTM"
    given = ["x", "W", "R", "B"]
    if axes is not None:
        domain, op_type = "com.microsoft", "DynamicQuantizeLSTM"
        given += ["", "", "", "", "W.scale", "W.zero", "R.scale", "R.zero"]
        for name, weight in list(stored.items()):
            scale = (np.abs(weight).max(axes, keepdims=True) / 127).astype(np.float32)
            codes = np.rint(weight / scale).astype(np.int8)
            stored[name] = np.ascontiguousarray(codes.transpose(0, 2, 1))
            stored[f"{name}.scale"] = scale.reshape(1, -1) if axes == (2,) else scale.reshape(1)
            stored[f"{name}.zero"] = np.zeros(stored[f"{name}.scale"].shape, np.int8)
    stored["B"] = np.zeros((1, 8 * hidden), np.float32)
    node = helper.make_node(op_type, given, ["y"], hidden_size=hidden, domain=domain)
    x = helper.make_tensor_value_info("x", 1, [options.steps, options.batch, hidden])
    y = helper.make_tensor_value_info("y", 1, None)
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph([node], "bare", [x], [y], tensors)
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 18), ("com.microsoft", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def measure_bare(hidden: int, folder: Path, options: argparse.Namespace) -> None:
    files = [folder / f"{i}.onnx" for i in range(3)]
    for file, axes in zip(files, (None, (2,), (1, 2)), strict=True):
        onnx.save(bare(hidden, options, axes), file)
    x = torch.randn(options.steps, options.batch, hidden).numpy()
    show(hidden, BARE, time_files(files, [x], seconds=options.seconds))


def measure(hidden: int, folder: Path, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    batch = torch.randn(options.batch, options.steps, hidden)
    captured = qtool.capture_model(Net(hidden).eval(), batch)
    files = [folder / "float.onnx"]
    captured.export_float(files[0])
    for mode in MODES:
        files.append(folder / f"{mode}.onnx")
        qtool.quantize(captured, [batch], mode=mode).export(files[-1])
    show(hidden, ("float", *MODES), time_files(files, [batch.numpy()], seconds=options.seconds))


def show(hidden: int, names: tuple[str, ...], found: Timing) -> None:
    for name, ratio, spread in zip(names, found.ratios, found.models, strict=True):
        text = f"{ratio.median:5.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"{hidden:6}  {name:18}  {text}  {spread.median:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="128,256,512")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0, help="for all files of a size")
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    print("hidden  form                beside float          ms", flush=True)
    for hidden in map(int, options.hidden.split(",")):
        with TemporaryDirectory() as folder:
            (measure_bare if options.bare else measure)(hidden, Path(folder), options)


if __name__ == "__main__":
    main()
