"""An LSTM in mode "dynamic" and with int8 weights alone beside float in ONNX Runtime, one thread.

    python benchmarks/recurrent.py [--hidden 128,256,512] [--batch 1] [--steps 64]

As many inputs as the state is wide, random weights. Files run in turns, and each ratio is the
median of pairs of one round, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import qtool
from qtool.analysis.latency import timed

MODES = ("dynamic", "weight-only")


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


def measure(hidden: int, folder: Path, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    batch = torch.randn(options.batch, options.steps, hidden)
    captured = qtool.capture_model(Net(hidden).eval(), batch)
    files = [folder / "float.onnx"]
    captured.export_float(files[0])
    for mode in MODES:
        files.append(folder / f"{mode}.onnx")
        qtool.quantize(captured, [batch], mode=mode).export(files[-1])
    found = timed(files, [batch.numpy()], seconds=options.seconds)
    for name, ratio, spread in zip(("float", *MODES), found.ratios, found.models, strict=True):
        text = f"{ratio.median:5.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"{hidden:6}  {name:11}  {text}  {spread.median:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="128,256,512")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6.0, help="for all files of a size")
    options = parser.parse_args()
    print("hidden  form         beside float          ms", flush=True)
    for hidden in map(int, options.hidden.split(",")):
        with TemporaryDirectory() as folder:
            measure(hidden, Path(folder), options)


if __name__ == "__main__":
    main()
