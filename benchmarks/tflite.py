"""TFLite files of several networks: codes, accuracy, size, time, and where they run.

    PYTHONPATH=. python benchmarks/tflite.py [--realdata FOLDER] [--only NAME,...]
        [--accuracy balanced] [--random SECONDS] [--mutated COUNT]

Networks are those of tflite_networks.py: of this project, of a folder as benchmarks/networks.py
reads it, and of torchvision and timm with random weights where they are installed. Needs the extra
`microcontroller`. A row has

- the outputs of the integer engine that LiteRT's reference kernels and TensorFlow Lite Micro
  compute differently, of all (a file with another code is not written at all);
- the operators on Ethos-U55-128 and U85-256;
- the outputs of the profile "xnnpack" that LiteRT with its default delegate computes differently;
- the SQNR against the float model (of several outputs the least): of the .tflite with the reference
  kernels on the first samples of the evaluation data, of it with XNNPACK and of the default
  target's .onnx file on more of them;
- size, and CPU time of conversion and writing, each relative to that .onnx file, unverified;
- the number of TRANSPOSE inside.

`--random` adds random networks (tests/fuzz), for so long, with int8 activations or `--activations`
int16, mixed; `--mutated` reads so many files with
random bytes changed, cut or moved, through inspect and verify.
"""

from __future__ import annotations

import argparse
import collections
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import Network
from tflite_drawn import mutated_files, random_networks
from tflite_networks import Make, all_networks, digits

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.tflite import deployment, litert, tflm, vela
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_delegate_codes
from qtool.core.atomic import scratch_folder
from qtool.core.data import to_batch
from qtool.core.errors import QtoolError
from qtool.core.sqnr import sqnr
from qtool.planning.targets import DEFAULT
from qtool.verification import Exactness

HEAD = ("network", "LiteRT", "TFLM", "NPU", "XNNPACK", "dB first", "dB XNNPACK", "dB onnx")
HEAD += ("size", "time", "TRANSPOSE")
MICRO_SAMPLES = 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Converted:
    """A quantized model, its unverified file, and the CPU seconds of both together."""

    model: qtool.QuantizedModel
    file: Path
    seconds: float


def converted(
    network: Network, path: Path, target: str, accuracy: str, mode: str = "static"
) -> Converted:
    start = time.process_time()
    options = {"target": target, "accuracy": accuracy, "mode": mode}
    quantized = qtool.quantize(network.model, network.calibration, **options)
    quantized.export(path, verify=False)
    return Converted(quantized, path, time.process_time() - start)


def measure(network: Network, accuracy: str, mode: str) -> tuple[str, ...]:
    with scratch_folder() as folder:
        onnx = converted(network, folder / "model.onnx", DEFAULT, accuracy)
        lite = converted(network, folder / "model.tflite", "tflite", accuracy, mode)
        result = lite.model.export(folder / "verified.tflite")
        assert result is not None
        assert result.exactness is not None
        file = TfliteFile(folder / "verified.tflite")
        batches = [lite.model.reference.bind(to_batch(b)) for b in network.data]
        arrays = [b.arrays() for b in batches]
        real = [lite.model._simulation.run_float(b) for b in batches]
        delegate, runtime = compare_delegate_codes(file, arrays[:1]), session(onnx.file)
        kinds = collections.Counter(op.name for op in file.model.operators)
        return (
            differing(result.exactness),
            *small_file(network, accuracy, mode, [a[:MICRO_SAMPLES] for a in arrays[0]], folder),
            differing(delegate),
            decibels(real[:1], [file.run(arrays[0])]),
            decibels(real, [file.run(a, default=True) for a in arrays]),
            decibels(real, [run(runtime, a) for a in arrays]),
            f"{lite.file.stat().st_size / onnx.file.stat().st_size:.2f}",
            f"{lite.seconds / onnx.seconds:.2f} of {onnx.seconds:.1f} s",
            str(kinds["TRANSPOSE"]),
        )


def differing(result: Exactness) -> str:
    return f"{result.elements - result.identical} of {result.elements}"


def small_file(
    network: Network, accuracy: str, mode: str, new: list[Array], folder: Path
) -> tuple[str, str]:
    """Return outputs that differ in TensorFlow Lite Micro, and the placement on Ethos-U."""
    path = folder / "micro.tflite"
    try:
        converted(network, path, deployment.TARGET, accuracy, mode)
        file = TfliteFile(path)
        expected = file.engine_codes(file.program(tflm.PROFILE), new)
        results = tflm.run(path, file.arrays(new))
        differ = sum(int((a != b).sum()) for a, b in zip(expected, results, strict=True))
        places = [vela.compile_for(path, a) for a in vela.ACCELERATORS]
    except QtoolError as error:
        return f"refused: {str(error)[:90]}", ""
    shares = " ".join(f"{100 * p.npu_share:.0f} %" for p in places)
    return f"{differ} of {sum(a.size for a in expected)}", shares


def decibels(real: list[list[Array]], other: list[list[Array]]) -> str:
    """Return the SQNR over all batches, of several outputs the least."""
    outputs = range(len(real[0]))
    joined = [
        [np.concatenate([b[i].ravel() for b in side]) for i in outputs] for side in (real, other)
    ]
    values = [sqnr(a, b) for a, b in zip(*joined, strict=True)]
    return f"{min(np.inf if v is None else v for v in values):.1f}"


def _joined(batches: list[list[Array]]) -> list[Array]:
    """Return each output of all batches, flat."""
    return [np.concatenate([a.ravel() for a in parts]) for parts in zip(*batches, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--realdata", type=Path, metavar="FOLDER", help="trained networks")
    parser.add_argument("--only", default="", help="names, with commas; 'none' for none")
    parser.add_argument("--accuracy", default="balanced")
    parser.add_argument("--mode", default="static", help="of the .tflite files")
    parser.add_argument("--random", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--first", type=int, default=0, help="number of the first random network")
    parser.add_argument("--activations", choices=("int8", "int16", "mixed"), default="int8")
    parser.add_argument("--mutated", type=int, default=0, metavar="COUNT")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    networks = all_networks(options.realdata)
    only = [n for n in options.only.split(",") if n] or list(networks)
    print(
        f"{litert.TITLE} {litert.version()}, {tflm.PACKAGE} {tflm.version()}, Vela {vela.version()}"
    )
    with scratch_folder() as folder:  # what is imported and compiled at a first conversion
        converted(digits(), folder / "first.onnx", DEFAULT, "fast")
    print(row(HEAD), row(["---"] * len(HEAD)), sep="\n", flush=True)
    for name in (n for n in networks if n in only):
        print(row([name, *cells(networks[name], options.accuracy, options.mode)]), flush=True)
    if options.mutated:
        mutated_files(options.mutated)
    if options.random:
        random_networks(options.random, options.first, options.activations)


def cells(make: Make, accuracy: str, mode: str) -> tuple[str, ...]:
    try:
        return measure(make(), accuracy, mode)
    except QtoolError as error:
        return (f"{type(error).__name__}: {error}",)


def row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


if __name__ == "__main__":
    main()
