"""Size of the pages of reports on large networks, and how long Chromium takes to draw them.

    python benchmarks/report_pages.py OUTPUT --networks resnet50
    python benchmarks/report_pages.py OUTPUT --networks decoder

Weights are random: of the pages only their size and the number of their elements mean anything.
resnet50 needs torchvision and decoder (16 layers) transformers, in separate runs if they do not fit
each other. Times are of the browser's own clock (Performance API): until the page is loaded, and of
drawing the graph alone, from hidden to the second frame.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import qtool
from qtool.evaluation.options import ReportOptions

CHROMIUM = "/usr/bin/chromium"
LIMIT = 2 * 2**20  # bytes of a page

DRAW = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const section = document.querySelector('#network');
  const times = [];
  for (let i = 0; i < 5; i++) {
    section.style.display = 'none';
    section.getBoundingClientRect();
    await frame();
    performance.mark('start');
    section.style.display = '';
    section.getBoundingClientRect();
    await frame();
    await frame();
    times.push(performance.measure('draw', 'start').duration);
  }
  return times;
}"""
LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd"


def resnet50() -> tuple[nn.Module, list[torch.Tensor]]:
    """ResNet-50, and images of 96 x 96."""
    from zoo.networks import NETWORKS as ZOO

    torch.manual_seed(0)
    return ZOO["resnet50"].build().eval(), list(torch.randn(32, 3, 96, 96).split(8))


def decoder() -> tuple[nn.Module, list[torch.Tensor]]:
    """A narrow Llama of 16 layers, and tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, int] = {"num_hidden_layers": 16, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))
    return _Logits(model).eval(), list(torch.randint(0, 256, (32, 16)).split(8))


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


NETWORKS: dict[str, Callable[[], tuple[nn.Module, list[torch.Tensor]]]] = {
    "resnet50": resnet50,
    "decoder": decoder,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.networks.split(","):
        model, data = NETWORKS[name]()
        folder = options.output / name
        started = time.perf_counter()
        asked = ReportOptions(name, batch_sizes=(1,), seconds=0.5)
        report = qtool.report(model, data, folder, asked)
        spent = time.perf_counter() - started
        page = folder / "report.html"
        size = page.stat().st_size
        fits = "fits" if size <= LIMIT else "does not fit"
        print(f"{name}: {len(report.plan)} nodes, report in {spent:.0f} s")
        print(f"  {size / 2**20:.2f} MiB, {fits} in {LIMIT / 2**20:.0f} MiB")
        loaded, drawn = open_page(page)
        print(f"  loaded in {_text(loaded)}, graph drawn in {_text(drawn)}")


def open_page(page: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Return milliseconds until the page is loaded, and of drawing the graph, of five runs each."""
    from playwright.sync_api import sync_playwright

    arguments: dict[str, Any] = {"args": ["--no-sandbox", "--disable-gpu"]}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, **arguments)
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        loaded = []
        for _ in range(5):
            tab.goto(page.resolve().as_uri(), wait_until="load")
            tab.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
            loaded.append(tab.evaluate(LOADED))
        tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        drawn = tab.evaluate(DRAW)
        browser.close()
    return loaded, drawn


def _text(times: Sequence[float]) -> str:
    return f"{np.median(times) / 1000:.2f} s (at most {max(times) / 1000:.2f})"


if __name__ == "__main__":
    main()
