"""Reports of real networks, and the cost of making them.

    python benchmarks/reports.py FOLDER OUTPUT [--networks resnet20,kws] [--parts reports,broken]

reports: one for each network, as `qtool report` makes it; OUTPUT then holds their folders, and the
table shows their figures. sensitivity: the sweep of resnet56 beside evaluations on the same images.
broken: layers of resnet20 whose range was spoiled, and where the report ranks them. large: size and
time of the report of a network of 500 layers, and how long a browser takes to open it. Costs are in
seconds of the processor, with one torch thread, so that other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networks
import numpy as np
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.backends.onnx.storage import save
from qtool.core.data import Batch
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.page.render import render_pages
from qtool.evaluation.sensitivity import measure_sensitivity
from qtool.planning.fake_quantize import quant_points

PARTS = ("reports", "sensitivity", "broken", "large")
CHROMIUM = "/usr/bin/chromium"


def reports(folder: Path, output: Path, names: list[str]) -> None:
    heads = ("float", "int8", "drop", "interval", "agree", "SQNR", "b1", "b32", "verdict")
    print("".join(["network".ljust(18), *(h.rjust(8) for h in heads)]))
    for name in names:
        network = networks.load(folder, name)
        captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
        quantized = qtool.quantize(captured, network.calibration)
        asked = ReportOptions(name, labels=network.labels, function=network.metric)
        found = quantized.report(network.data, output / name, asked)
        top1, outcome = found.accuracy.metrics[0], found.accuracy.models[1]
        interval = top1.intervals[1]
        unit = 100 if top1.percent else 1
        cells = [f"{unit * v:8.2f}" for v in (*top1.values, top1.drops[1])]
        cells += [f" {unit * interval.low:.2f}..{unit * interval.high:.2f}" if interval else "-"]
        agreement = f"{100 * outcome.agreement.value:8.2f}" if outcome.agreement else "       -"
        cells += [agreement, f"{outcome.sqnr_db:8.2f}"]
        cells += [f"{t.ratios[1].median:8.2f}" for t in found.latency]
        print(name.ljust(18), *cells, found.models[1].verdict.headline, flush=True)


def sensitivity(folder: Path, name: str = "resnet56", images: int = 1024) -> None:
    network = networks.load(folder, name)
    captured = qtool.capture_model(network.model, network.calibration[0])
    quantized = qtool.quantize(captured, network.calibration)
    data = [Batch((b,)) for b in torch.cat(network.data)[:images].split(32)]
    runs = {
        "float in torch": lambda: _run(network.model, data),
        "float and simulated int8 in torch": lambda: (
            _run(network.model, data),
            _run(quantized, data),
        ),
    }
    once = {what: min(_seconds(run) for _ in range(2)) for what, run in runs.items()}
    found = measure_sensitivity(quantized, data)
    spent = _seconds(lambda: measure_sensitivity(quantized, data))
    least = min(e.samples for e in found.layers)
    print(f"{name}: {len(found.layers)} layers, {images} images, each layer on {least} or more")
    for what, seconds in once.items():
        print(f"  {spent:.1f} s: {spent / seconds:.2f} evaluations ({what}: {seconds:.1f} s)")
    full = measure_sensitivity(quantized, data[: len(data) // 4], budget=1000)
    order = {e.name: i for i, e in enumerate(sorted(full.layers, key=lambda e: -e.only_share))}
    ranks = [order[e.name] for e in sorted(found.layers, key=lambda e: -e.only_share)]
    alike = np.corrcoef(ranks, range(len(ranks)))[0, 1]
    print(f"  rank correlation with every layer on {images // 4} images: {alike:.3f}")
    print(f"  its first five stand there at {ranks[:5]}")


def broken(folder: Path, name: str = "resnet20") -> None:
    network = networks.load(folder, name)
    captured = qtool.capture_model(network.model, network.calibration[0])
    data = [Batch((b,)) for b in torch.cat(network.data)[:512].split(32)]
    for spoiled in (["layer2.1.conv1"], ["layer1.2.add"], ["layer1.0.conv2", "layer3.1.conv1"]):
        for factor in (16.0, 1 / 8):
            quantized = qtool.quantize(captured, network.calibration[:8])
            for layer in spoiled:
                spoil(quantized, layer, factor)
            found = measure_sensitivity(quantized, data)
            by = {
                "outputs, only this": sorted(found.layers, key=lambda e: -e.only_share),
                "alone": sorted(found.layers, key=lambda e: e.alone_db or 999.0),
                "gain": sorted(found.layers, key=lambda e: -(e.gain_db or 0.0)),
            }
            told = {k: [e.name for e in v[: len(spoiled) + 1]] for k, v in by.items()}
            print(f"range x {factor:g} of {', '.join(spoiled)}: first by {told}")


def spoil(quantized: QuantizedModel, layer: str, factor: float) -> None:
    """Makes the range of a layer's result wrong by a factor."""
    from qtool.evaluation.layer_facts import layers_of

    found = next(e for e in layers_of(quantized) if e.name == layer)
    params = quantized.parameters[found.output]
    worse = replace(params, scale=params.scale * factor)
    for name in found.points:
        point = quant_points(quantized.module)[name]
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


def large(output: Path, layers: int = 330) -> None:
    """An add stands behind every second convolution, so that there are half as many again."""
    torch.manual_seed(0)
    data = torch.randn(64, 3, 12, 12).split(16)
    captured = qtool.capture_model(Deep(layers).eval(), data[0])
    quantized = qtool.quantize(captured, data)
    int8 = output / "large.int8.onnx"
    save(quantized.to_onnx(), int8)
    asked, made = ReportOptions("large", seconds=0.5), []
    spent = _seconds(
        lambda: made.append(
            qtool.report(int8, data, output / "large", asked, model=captured, other_model=True)
        )
    )
    found = made[0]
    timed = sum(t.seconds for t in found.latency)
    sizes = {p.name: p.stat().st_size / 2**20 for p in (output / "large").iterdir()}
    print(f"{len(found.layers.layers)} layers, {len(found.plan)} nodes: {spent:.1f} s")
    print(f"  of them timing {timed:.1f} s, pages {_seconds(lambda: render_pages(found)):.1f} s")
    print("  " + ", ".join(f"{name} {size:.2f} MiB" for name, size in sizes.items()))
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
        quiet = ["--no-sandbox", "--disable-gpu"]
        browser = p.chromium.launch(executable_path=CHROMIUM, args=quiet)
        tab = browser.new_page()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            tab.goto(page.resolve().as_uri(), wait_until="load")
            tab.wait_for_selector("#t-layers")
            times.append(time.perf_counter() - start)
        press = _clock(lambda: tab.click("#t-layers thead th:nth-child(3) button"))
        show = _clock(lambda: tab.click("#t-layers button.open >> nth=0"))
        browser.close()
    print(f"  opens in {min(times):.2f} to {max(times):.2f} s (by the clock, median ", end="")
    print(f"{np.median(times):.2f}); sorts in {press:.2f} s; a layer shows in {show:.2f} s")


def _run(model: object, data: list[Batch]) -> None:
    with torch.inference_mode():
        for batch in data:
            model(*batch.args)


def _seconds(function: Callable[[], object]) -> float:
    """Of the processor."""
    start = time.process_time()
    function()
    return time.process_time() - start


def _clock(function: Callable[[], object]) -> float:
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
