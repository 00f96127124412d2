"""Convolutional networks with 4-bit weights and 8-bit activations, by what is done for them.

    python benchmarks/low_bits.py FOLDER [--networks resnet20] [--steps nearest,refit]

Weights have one scale for each output channel; the first and the last layer and depthwise
convolutions keep 8 bits. Drops are of top-1 on the evaluation data of networks.py, in points, with
their standard error; CPU seconds are those of calibration and conversion.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from torch import nn

import qtool
from qtool.verification.fidelity import decibels

NETWORKS = "resnet20,resnet56,densenet40,mobilenetv2_w05"
STEPS: dict[str, dict[str, Any]] = {
    "nearest": {"recover": []},
    "refit": {"recover": ["refit"]},
    "renorm": {"recover": ["refit", "renorm"]},
    "round": {"recover": ["round"]},
    "equalize+refit+round": {"recover": ["equalize", "refit", "round"]},
    "and learn": {"recover": ["equalize", "refit", "round", "learn"]},
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


def measure(network: networks.Network, exact: torch.Tensor, chosen: dict[str, Any]) -> list[float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print("network           steps                   drop         SQNR dB  agree %  CPU s")
    for name in options.networks.split(","):
        network = networks.load(options.folder, name)
        with torch.inference_mode():
            exact = torch.cat([network.model(batch) for batch in network.data])
        for steps in options.steps.split(","):
            found = measure(network, exact, STEPS[steps])
            rows.append([name, steps, *found])
            drop, error, sqnr, agree, seconds = found
            print(
                f"{name:17} {steps:22} {drop:+5.2f} ± {error:.2f} {sqnr:10.2f} {agree:8.2f} "
                f"{seconds:6.0f}",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
