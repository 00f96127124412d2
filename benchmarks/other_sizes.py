"""Are int8 files right at other sizes than those of the calibration?

    python benchmarks/other_sizes.py [--only NAME,NAME] [--folder FOLDER]

Each of the 60 small networks of other_sizes_networks.py is quantized with 32 samples of one size,
and the file is run in ONNX Runtime at other sizes that the float model takes, next to the float
model (torch's module, or the given ONNX file in ONNX Runtime). Printed per network: dynamic
dimensions of the int8 file, of those of the float model; SQNR at the size of the calibration and
at the others. A shape is wrong if it is not the float model's; a value is wrong if a batch has
10 dB less than that of the calibration's size. Inputs are 3/4 as wide as the calibration's, so that
larger windows do not clip.
A network that is refused is counted, and its message printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from measured import session
from other_sizes_networks import NETWORKS, Network

import qtool

SAMPLES, BATCH = 32, 16
FACTORS = ((1, 1), (2, 2), (2, 1), (1, 2), (1.5, 1.25), (0.75, 1.5))
"""Of the two dynamic sizes (of one: the first of each pair), rounded to multiples of 8."""
ALLOWED_LOSS = 10.0  # dB
Arrays = list[np.ndarray]
Run = Callable[[np.ndarray], Arrays]


def decibels(reference: np.ndarray, other: np.ndarray) -> float:
    """SQNR of a batch, dB."""
    noise = ((reference.astype(np.float64) - other) ** 2).sum()
    return float(10 * np.log10((reference.astype(np.float64) ** 2).sum() / noise)) if noise else 999


def in_runtime(path: Path) -> Run:
    runtime = session(path)
    name = runtime.get_inputs()[0].name
    return lambda x: list(runtime.run(None, {name: x}))


def float_model(network: Network, folder: Path) -> tuple[object, Run]:
    """The model to quantize, and the reference."""
    if not network.as_file:
        module = network.module()

        def run(x: np.ndarray) -> Arrays:
            with torch.no_grad():
                return [module(torch.from_numpy(x)).numpy()]

        return module, run
    path = folder / f"float-{network.name}"
    onnx.save(network.file(), path)
    return qtool.load_model(path), in_runtime(path)


def outputs(run: Run, x: np.ndarray) -> Arrays | str:
    """The outputs, or why there are none."""
    try:
        return run(x)
    except Exception as error:  # noqa: BLE001  # the runtimes' errors have no common class
        return str(error).splitlines()[0]


def other_shapes(network: Network) -> list[tuple[int, ...]]:
    """Shapes of batches: that of the calibration, then others."""
    shapes = []
    for factors in FACTORS:
        shape = [3 if network.batch else 1, *network.shape]
        for axis, factor in zip(network.dynamic, factors, strict=False):
            shape[axis] = max(8, round(shape[axis] * factor / 8) * 8)
        shapes.append(tuple(shape))
    return list(dict.fromkeys(shapes))


def measure(network: Network, folder: Path) -> tuple[str, dict[str, int]]:
    """One line, and what is counted."""
    model, reference = float_model(network, folder)
    draw = np.random.default_rng(0)
    samples = draw.standard_normal((SAMPLES, *network.shape)).astype(np.float32)
    batch = BATCH if network.batch else 1
    batches = [torch.from_numpy(part) for part in np.split(samples, SAMPLES // batch)]
    wanted = {**network.dynamic, **({0: "n"} if network.batch else {})}
    dynamic = None if network.as_file else {"x": wanted}
    path = folder / f"int8-{Path(network.name).stem}.onnx"
    start = time.thread_time()
    try:
        quantized = qtool.quantize(model, batches, accuracy="fast", dynamic=dynamic)
        quantized.export(path)
    except qtool.QtoolError as error:
        return f"refused: {str(error)[:300]}", {"refused": 1}
    seconds = time.thread_time() - start
    run = in_runtime(path)
    declared = session(path).get_inputs()[0].shape
    kept = [axis for axis in wanted if isinstance(declared[axis], str)]
    counts = {"complete": len(kept) == len(wanted), "shapes": 0, "values": 0}
    shown: list[str] = []
    base = None
    for shape in other_shapes(network):
        fixed = [(i, d) for i, d in enumerate(declared) if isinstance(d, int)]
        fitted = list(shape)
        for axis, size in fixed:
            fitted[axis] = size
        x = np.random.default_rng(1).standard_normal(fitted).astype(np.float32) * np.float32(0.75)
        expected, actual = outputs(reference, x), outputs(run, x)
        if isinstance(expected, str):
            continue  # the float model does not take this size
        if isinstance(actual, str):
            counts["shapes"] += 1
            shown.append(f"{'x'.join(map(str, fitted))} fails ({actual[-60:]})")
            continue
        if [a.shape for a in actual] != [e.shape for e in expected]:
            counts["shapes"] += 1
            shown.append(f"{'x'.join(map(str, fitted))} WRONG SHAPE {actual[0].shape}")
            continue
        worst = min(map(decibels, expected, actual))
        base = worst if base is None else base
        wrong = worst < base - ALLOWED_LOSS
        counts["values"] += wrong
        shown.append(f"{worst:.1f}{' WRONG' if wrong else ''}")
    notes = quantized.notes
    line = f"{len(kept)} of {len(wanted)} dims, dB {', '.join(shown)}; {seconds:.1f} s"
    return "\n      ".join([line, *(n for n in notes if "size" in n or "dimension" in n)]), counts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of networks, with commas")
    parser.add_argument("--folder", type=Path, help="for the files; by default a temporary one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch
    chosen = set(filter(None, options.only.split(",")))
    totals = dict.fromkeys(("networks", "complete", "shapes", "values", "refused"), 0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for network in NETWORKS:
            if chosen and network.name not in chosen:
                continue
            line, counts = measure(network, folder)
            print(f"{network.name:18} {line}", flush=True)
            totals["networks"] += 1
            for key, count in counts.items():
                totals[key] += int(count)
    print(
        f"{totals['networks']} networks: {totals['complete']} keep every dimension, "
        f"{totals['shapes']} wrong shapes, {totals['values']} wrong values, "
        f"{totals['refused']} refused"
    )


if __name__ == "__main__":
    main()
