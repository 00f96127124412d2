"""Reports of real networks, and what the reports themselves cost.

    python benchmarks/reports.py FOLDER OUTPUT [--networks resnet20,kws] [--parts reports,broken]

reports: one for each network, as `qtool report` makes it; OUTPUT then holds their folders, and the
table shows their figures. sensitivity: the sweep of resnet56 beside evaluations on the same images.
broken: layers of resnet20 whose range was spoiled, and where the report ranks them. large: size and
time of the report of a network of 500 layers, and how long a browser takes to open it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import networks
import numpy as np
import torch
from torch import nn

import qtool
from qtool.analysis.accuracy import measure_outputs
from qtool.analysis.sensitivity import sweep
from qtool.data import Batch
from qtool.export import write_onnx
from qtool.fake_quant import points_of
from qtool.quantized import QuantizedModel, float_onnx
from qtool.report import Options, pages, report_quantized
from qtool.targets import DEFAULT, target

PARTS = ("reports", "sensitivity", "broken", "large")
CHROMIUM = "/usr/bin/chromium"


def reports(folder: Path, output: Path, names: list[str]) -> None:
    print("network          float    int8    drop  interval        agree  SQNR  b1     b32    verdict")
    for name in names:
        network = networks.load(folder, name)
        captured = qtool.capture_model(network.model, network.calibration[:32])
        quantized = qtool.quantize(captured, network.calibration.split(32))
        start = time.perf_counter()
        found = report_quantized(
            quantized,
            network.inputs.split(250),
            output / name,
            Options(name, labels=network.labels),
            reference=captured.graph,
        )
        spent = time.perf_counter() - start
        top1, outcome = found.accuracy.metrics[0], found.accuracy.models[1]
        interval = top1.intervals[1]
        ratios = [t.ratios[1].median for t in found.latency]
        print(
            f"{name:16} {100 * top1.values[0]:5.2f}  {100 * top1.values[1]:5.2f}  "
            f"{100 * top1.drops[1]:6.2f}  {100 * interval.low:5.2f} to {100 * interval.high:5.2f}  "
            f"{100 * outcome.agreement.value:5.2f}  {outcome.sqnr_db:5.2f}  "
            f"{'  '.join(f'{r:.2f}' for r in ratios)}  {found.models[1].verdict.headline}  "
            f"({spent:.0f} s, html {(output / name / 'report.html').stat().st_size / 1024:.0f} KiB)",
            flush=True,
        )


def sensitivity(folder: Path, name: str = "resnet56", images: int = 1024) -> None:
    network = networks.load(folder, name)
    captured = qtool.capture_model(network.model, network.calibration[:32])
    quantized = qtool.quantize(captured, network.calibration.split(32))
    data = [Batch((b,)) for b in network.inputs[:images].split(32)]
    for _ in range(2):
        once = {
            "float model in torch": _seconds(lambda: _run(network.model, data)),
            "float and simulated int8 in torch": _seconds(
                lambda: (_run(network.model, data), _run(quantized, data))
            ),
            "float and int8 in ONNX Runtime": _seconds(lambda: _evaluate(captured, quantized, data)),
        }
        found, spent = [], 0.0
        spent = _seconds(lambda: found.append(sweep(quantized, data)))
    result = found[0]
    least = min(e.samples for e in result.layers)
    print(
        f"{name}: {len(result.layers)} layers on {images} images, each on {least} or more: {spent:.1f} s"
    )
    for what, seconds in once.items():
        print(f"  {spent / seconds:.2f} evaluations ({what}: {seconds:.1f} s)")
    full = sweep(quantized, data[: len(data) // 4], budget=1000)
    order = {e.name: i for i, e in enumerate(sorted(full.layers, key=lambda e: -e.only_share))}
    ranks = [order[e.name] for e in sorted(result.layers, key=lambda e: -e.only_share)]
    print(
        f"  rank correlation with every layer on every image: "
        f"{np.corrcoef(ranks, range(len(ranks)))[0, 1]:.3f}; its first five stand at {ranks[:5]}"
    )


def broken(folder: Path, name: str = "resnet20") -> None:
    network = networks.load(folder, name)
    captured = qtool.capture_model(network.model, network.calibration[:32])
    data = [Batch((b,)) for b in network.inputs[:512].split(32)]
    for spoiled in (["layer2.1.conv1"], ["layer1.2.add"], ["layer1.0.conv2", "layer3.1.conv1"]):
        for factor in (16.0, 1 / 8):
            quantized = qtool.quantize(captured, network.calibration[:256].split(32))
            for layer in spoiled:
                spoil(quantized, layer, factor)
            found = sweep(quantized, data)
            by = {
                "outputs, only this": sorted(found.layers, key=lambda e: -e.only_share),
                "alone": sorted(found.layers, key=lambda e: e.alone_db or 999.0),
                "gain": sorted(found.layers, key=lambda e: -(e.gain_db or 0.0)),
            }
            told = {k: [e.name for e in v[: len(spoiled) + 1]] for k, v in by.items()}
            print(f"range x {factor:g} of {', '.join(spoiled)}: first by {told}")


def spoil(quantized: QuantizedModel, layer: str, factor: float) -> None:
    """Makes the range of a layer's result wrong by a factor."""
    from qtool.analysis.layers import layers_of

    found = next(e for e in layers_of(quantized) if e.name == layer)
    params = quantized.parameters[found.output]
    worse = replace(params, scale=params.scale * factor)
    for name in found.points:
        point = points_of(quantized.module)[name]
        if point.axis is None and point.scale == params.scale:
            point.set_params(worse)
            quantized.parameters[name] = worse


class Deep(nn.Module):
    """Convolutions one after the other, each with its ReLU; a shortcut over every second."""

    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(layers))
        self.head = nn.Linear(width, 10)
        with torch.no_grad():
            for conv in self.blocks:
                conv.weight.mul_(0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        for i, conv in enumerate(self.blocks):
            y = torch.relu(conv(x))
            x = 0.5 * x + 0.5 * y if i % 2 else y
        return self.head(x.mean((2, 3)))


def large(output: Path, layers: int = 500) -> None:
    torch.manual_seed(0)
    net = Deep(layers).eval()
    data = torch.randn(64, 3, 12, 12).split(16)
    captured = qtool.capture_model(net, data[0])
    quantized = qtool.quantize(captured, data)
    start = time.perf_counter()
    found = report_quantized(
        quantized, data, output / "large", Options("large", seconds=1.0), reference=captured.graph
    )
    spent = time.perf_counter() - start
    start = time.perf_counter()
    made = pages(found)
    drawn = time.perf_counter() - start
    timed = sum(t.seconds for t in found.latency)
    print(
        f"{len(found.layers.layers)} layers, {len(found.plan)} nodes: whole report {spent:.1f} s, of "
        f"them {timed:.1f} s timing; pages alone {drawn:.1f} s; "
        + ", ".join(f"{k} {len(v) / 2**20:.2f} MiB" for k, v in made.items())
    )
    _open(output / "large" / "report.html")


def _open(page: Path) -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("  playwright is not installed: not opened")
        return
    if not Path(CHROMIUM).exists():
        print(f"  there is no {CHROMIUM}: not opened")
        return
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            tab.goto(page.resolve().as_uri(), wait_until="load")
            tab.wait_for_selector("#t-layers")
            times.append(time.perf_counter() - start)
        press = _seconds(lambda: tab.click("#t-layers thead th:nth-child(3) button"))
        show = _seconds(lambda: tab.click("#t-layers button.open >> nth=0"))
        browser.close()
    print(f"  opens in {np.median(times):.2f} s; sorts in {press:.2f} s; a layer shows in {show:.2f} s")


def _run(model: object, data: list[Batch]) -> None:
    with torch.inference_mode():
        for batch in data:
            model(*batch.args)


def _evaluate(captured: qtool.Captured, quantized: QuantizedModel, data: list[Batch]) -> None:
    chosen = target(DEFAULT)
    if not FILES:
        FILES.extend(Path(f"/tmp/qtool-{i}-{time.time()}.onnx") for i in range(2))
        write_onnx(float_onnx(captured.graph, chosen.opset, chosen.ir_version), FILES[0])
        quantized.export(FILES[1])
    measure_outputs(FILES, data)


FILES: list[Path] = []


def _seconds(function) -> float:  # noqa: ANN001
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=",".join(networks.NETWORKS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    parts = options.parts.split(",")
    if "reports" in parts:
        reports(options.folder, options.output, options.networks.split(","))
    if "sensitivity" in parts:
        sensitivity(options.folder)
    if "broken" in parts:
        broken(options.folder)
    if "large" in parts:
        large(options.output)


if __name__ == "__main__":
    main()
