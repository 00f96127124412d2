"""Accuracy of networks with 4-bit weights, by recovery step.

    python benchmarks/low_bits.py FOLDER [--networks resnet20] [--steps nearest,gptq]
    python benchmarks/low_bits.py FOLDER --networks minilm [--scales channel,32]

Convolutional networks have 8-bit activations, and one scale for each output channel; the first and
the last layer and depthwise convolutions keep 8 bits. Drops are of top-1 on the evaluation data of
realdata.py, in points, with their standard error; CPU seconds are those of calibration and
conversion. Of a sentence encoder the weights of linear layers alone have 4 bits, with zero points;
its files are run in ONNX Runtime, whose kernel rounds inputs to int8.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import realdata
import torch
from measured import session
from torch import nn

import qtool
from qtool.core.sqnr import decibels

NETWORKS = "resnet20,resnet56,densenet40,mobilenetv2_w05"
STEPS: dict[str, dict[str, Any]] = {
    "nearest": {"recover": []},
    "gptq": {"recover": ["gptq"]},
    "without learned-scales": {"recover": ["cross-layer-equalization", "gptq"]},
    "and learned-scales": {"recover": ["cross-layer-equalization", "gptq", "learned-scales"]},
}

ALONE: dict[str, dict[str, Any]] = {  # steps of weights alone: the observer, the steps
    "nearest": {"weight_observer": "minmax"},
    "mse": {"weight_observer": "mse"},
    "gptq": {"weight_observer": "mse", "recover": ["gptq"]},
}


def recipe(model: nn.Module) -> list[dict[str, Any]]:
    """Rules: 4 bits, but 8 where they are needed most."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    names = list(layers)
    kept = [names[0], names[-1]]
    kept += [n for n, m in layers.items() if isinstance(m, nn.Conv2d) and m.groups > 1]
    rules = [{"op": "conv", "weights": "int4"}]
    linear = [n for n, m in layers.items() if isinstance(m, nn.Linear) and n not in kept]
    rules += [{"select": name, "weights": "int4"} for name in linear]
    return rules + [{"select": name, "weights": "int8"} for name in dict.fromkeys(kept)]


def measure(network: realdata.Network, exact: torch.Tensor, chosen: dict[str, Any]) -> list[float]:
    """Drop, its standard error, SQNR in dB, agreement in percent, CPU seconds."""
    start = time.process_time()
    captured = qtool.capture_model(network.model, network.calibration[0])
    model = qtool.quantize(captured, network.calibration, recipe=recipe(network.model), **chosen)
    seconds = time.process_time() - start
    with torch.inference_mode():
        found = torch.cat([model(batch) for batch in network.data])
    labels = torch.as_tensor(np.asarray(network.labels))
    before, after = (o.argmax(1) == labels for o in (exact, found))
    lost = before.double() - after.double()
    agree = (exact.argmax(1) == found.argmax(1)).double().mean()
    power, noise = exact.double().square().sum(), (exact.double() - found).square().sum()
    error = float(lost.std()) / len(lost) ** 0.5
    sqnr = decibels(float(power), float(noise)) or float("inf")
    return [100 * float(lost.mean()), 100 * error, sqnr, 100 * float(agree), seconds]


def in_runtime(path: Path) -> Callable[..., torch.Tensor]:
    """The file as a module is called."""
    runtime = session(path, torch.get_num_threads())

    def run(**inputs: torch.Tensor) -> torch.Tensor:
        found = runtime.run(None, {name: t.numpy() for name, t in inputs.items()})
        return torch.from_numpy(found[0])

    return run


def measure_alone(
    network: realdata.Network, captured: Any, exact: torch.Tensor, scales: str, steps: str
) -> list[float]:
    """Metric, SQNR in dB, CPU seconds, MiB of the file."""
    chosen = dict(ALONE[steps])
    block = int(scales) if scales.isdigit() else scales
    rule = {"op": "linear", "block": block, "weight_observer": chosen.pop("weight_observer")}
    start, given = time.process_time(), {"mode": "weight-only-int4", "recover": [], **chosen}
    model = qtool.quantize(captured, network.calibration, recipe=[rule], **given)
    seconds = time.process_time() - start
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.export(path)
        run, size = in_runtime(path), path.stat().st_size
        found = torch.cat([run(**batch) for batch in network.data])
        metric = network.metric(run)
    power, noise = exact.double().square().sum(), (exact.double() - found).square().sum()
    return [metric, decibels(float(power), float(noise)) or float("inf"), seconds, size / 2**20]


def weights_alone(network: realdata.Network, scales: str) -> list[list[Any]]:
    captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
    with torch.inference_mode():
        exact = torch.cat([network.model(**batch) for batch in network.data])
    print(f"{network.name}, float: {network.metric(network.model):.2f}")
    print("scales   steps     metric  SQNR dB  CPU s    MiB", flush=True)
    rows = []
    for each in scales.split(","):
        for steps in ALONE:
            found = measure_alone(network, captured, exact, each, steps)
            rows.append([network.name, each, steps, *found])
            metric, sqnr, seconds, size = found
            print(
                f"{each:8} {steps:8} {metric:7.2f} {sqnr:8.2f} {seconds:6.0f} {size:6.1f}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--scales", default="channel,128,32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[list[Any]] = []
    chosen = [realdata.load(options.folder, name) for name in options.networks.split(",")]
    for network in chosen:
        if network.metric is not None:
            rows += weights_alone(network, options.scales)
    if images := [network for network in chosen if network.metric is None]:
        print("network           steps                   drop         SQNR dB  agree %  CPU s")
    for network in images:
        with torch.inference_mode():
            exact = torch.cat([network.model(batch) for batch in network.data])
        for steps in options.steps.split(","):
            found = measure(network, exact, STEPS[steps])
            rows.append([network.name, steps, *found])
            drop, error, sqnr, agree, seconds = found
            print(
                f"{network.name:17} {steps:22} {drop:+5.2f} ± {error:.2f} {sqnr:10.2f} "
                f"{agree:8.2f} {seconds:6.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
