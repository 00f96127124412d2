"""TFLite files of several networks: codes, accuracy, size, time, and where they run.

    python benchmarks/tflite.py [MODULE:FUNCTION ...] [--only NAME,...] [--random SECONDS]
        [--mutated COUNT]

Networks are the sample network, some of torchvision with random weights where that is installed,
and those that each FUNCTION returns: name -> function that returns a model, a calibration batch and
an evaluation batch. Needs the extra `microcontroller`. A row has

- the outputs of the integer engine that LiteRT's reference kernels and TensorFlow Lite Micro
  compute differently, of all (a file with another code is not written at all);
- the outputs of the profile "xnnpack" that LiteRT with its default delegate computes differently;
- the SQNR against the float model, of the .tflite with the reference kernels and with XNNPACK, and
  of the default target's .onnx file;
- size and CPU time of writing, each relative to the QDQ file of the same plan, unverified;
- the operators on Ethos-U55-128 and U85-256, and the number of TRANSPOSE inside.

`--random` adds random networks (tests/fuzz), for so long; `--mutated` reads so many files with
random bytes changed, cut or moved, through inspect and verify.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qtool
from qtool.backends.onnx.storage import save as save_onnx
from qtool.backends.tflite import microcontroller, tflm, vela
from qtool.backends.tflite.export import Layout
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_delegate_codes
from qtool.conversion import tflite_export
from qtool.core.atomic import scratch_folder
from qtool.core.errors import QtoolError
from qtool.verification import Exactness

ROOT = Path(__file__).parents[1]
VISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5")
VISION += ("efficientnet_b0", "mnasnet0_5", "regnet_y_400mf", "googlenet", "convnext_tiny")
VISION += ("vit_b_16",)
HEAD = ("network", "LiteRT", "TFLM", "XNNPACK", "dB", "dB XNNPACK", "dB onnx", "size", "time")
HEAD += ("NPU", "TRANSPOSE")

_LIBRARY = torch.library.Library("torchvision", "DEF")
Network = tuple[torch.nn.Module, torch.Tensor, torch.Tensor]


def sample() -> dict[str, Callable[[], Network]]:
    def digits() -> Network:
        from safetensors.torch import load_file

        from examples.digits.network import digits_net

        model = digits_net()
        model.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
        images = np.load(ROOT / "calib_data/digits/images.npz")["x"]
        new = np.load(ROOT / "examples/digits/eval.npz")["x"]
        return model.eval(), torch.from_numpy(images), torch.from_numpy(new)

    return {"digits": digits}


def vision() -> dict[str, Callable[[], Network]]:
    try:
        import torchvision
    except ImportError:
        return {}
    except RuntimeError:  # its compiled part fits another torch, and is not needed
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

    def make(name: str) -> Network:
        torch.manual_seed(0)
        options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
        model = torchvision.models.get_model(name, weights=None, **options).eval()
        size = 224 if name == "vit_b_16" else 64
        return model, torch.randn(8, 3, size, size), torch.randn(4, 3, size, size)

    return {name: (lambda n=name: make(n)) for name in VISION}


def named(source: str) -> dict[str, Callable[[], Network]]:
    module, _, function = source.partition(":")
    found: dict[str, Callable[[], Network]] = getattr(importlib.import_module(module), function)()
    return found


def measure(make: Callable[[], Network]) -> tuple[str, ...]:
    model, calibration, new = make()
    data = [calibration[i : i + 32] for i in range(0, len(calibration), 32)]
    quantized = qtool.quantize(model, data, target="tflite", accuracy="fast")
    other = qtool.quantize(model, data, accuracy="fast")
    with torch.no_grad():
        real = model(new).numpy()
    with scratch_folder() as folder:
        lite, onnx = folder / "model.tflite", folder / "model.onnx"
        sizes, times = written(quantized, folder)
        result = quantized.export(lite, timing=0)
        other.export(onnx, timing=0)
        assert result is not None
        assert result.exactness is not None
        file = TfliteFile(lite)
        (codes,) = file.run([new.numpy()])
        (default,) = qtool_run(onnx, new.numpy())
        kinds = collections.Counter(op.name for op in file.model.operators)
        delegate = compare_delegate_codes(file, [[new.numpy()]])
        apart = "" if delegate is None else _differing(delegate)
        (fast,) = file.run([new.numpy()], default=True)
        small, placement = small_file(model, data, new[:8], folder)
    return (
        _differing(result.exactness),
        small,
        apart,
        f"{sqnr(real, codes):.1f}",
        f"{sqnr(real, fast):.1f}",
        f"{sqnr(real, default):.1f}",
        f"{sizes[0] / sizes[1]:.2f}",
        f"{times[0] / times[1]:.2f}",
        placement,
        str(kinds["TRANSPOSE"]),
    )


def _differing(result: Exactness) -> str:
    return f"{result.elements - result.identical} of {result.elements}"


def written(quantized: Any, folder: Path) -> tuple[tuple[int, int], tuple[float, float]]:
    """Return sizes and CPU seconds of the TFLite and of the QDQ file of one plan."""
    lite, onnx = folder / "plain.tflite", folder / "plain.onnx"
    start = time.process_time()
    simulation, info = quantized._simulation, quantized.info.metadata()
    tflite_export.save(tflite_export.write(simulation, quantized.qdq, Layout(), info), lite)
    middle = time.process_time()
    quantized._stored.graph = None
    save_onnx(quantized.to_onnx(), onnx)
    end = time.process_time()
    return (lite.stat().st_size, onnx.stat().st_size), (middle - start, end - middle)


def small_file(model: Any, data: Any, new: torch.Tensor, folder: Path) -> tuple[str, str]:
    """Return outputs that differ in TensorFlow Lite Micro, and the placement on Ethos-U."""
    path = folder / "micro.tflite"
    try:
        quantized = qtool.quantize(model, data, target="tflite-micro", accuracy="fast")
        quantized.export(path, verify=False)
        file = TfliteFile(path)
        program = file.program(tflm.PROFILE)
        expected = file.engine_codes(program, [new.numpy()])
        results = tflm.run(path, file.arrays([new.numpy()]))
        differ = sum(int((a != b).sum()) for a, b in zip(expected, results, strict=True))
        text = f"{differ} of {sum(a.size for a in expected)}"
        places = [vela.compile_for(path, a) for a in vela.ACCELERATORS]
        return text, " ".join(f"{100 * p.share:.0f}%" for p in places)
    except QtoolError as error:
        return f"refused: {str(error)[:60]}", ""


def qtool_run(path: Path, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    from qtool.backends.onnxruntime.session import run, session

    return run(session(path), [array])


def sqnr(real: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float(10 * np.log10(np.square(real).sum() / np.square(real - other).sum()))


def random_networks(seconds: float, first: int = 0) -> None:
    """Convert random networks for some time, and count what becomes of them."""
    from tests.fuzz.draw_networks import draw_network

    counts, delegates = collections.Counter[str](), collections.Counter[str]()
    end, number, outputs = time.monotonic() + seconds, first, 0
    while time.monotonic() < end:
        number += 1
        try:
            network = draw_network(random.Random(number))  # noqa: S311  # no secret
            data = [network.batch(32, i + 1) for i in range(2)]
            quantized = qtool.quantize(network.module(), data, target="tflite", accuracy="fast")
        except QtoolError:
            counts["not quantized"] += 1
            continue
        with scratch_folder() as folder:
            try:
                result = quantized.export(folder / "model.tflite", timing=0)
                delegates[_delegate(folder / "model.tflite", data[0][:4])] += 1
            except QtoolError as error:
                kind = type(error).__name__
                counts["refused" if kind == "ExportError" else f"{kind}: {error}"] += 1
                continue
        assert result is not None
        assert result.exactness is not None
        outputs += result.exactness.elements
        counts["every code equal" if result.exactness.exact else "codes differ"] += 1
    print(f"random networks {first + 1} to {number}, {outputs} outputs: {dict(counts)}")
    print(f"with XNNPACK: {dict(delegates)}")


def _delegate(path: Path, batch: Any) -> str:
    """Return what became of a file in the default delegate."""
    try:
        arrays = [t.numpy() for t in (batch if isinstance(batch, tuple) else (batch,))]
        result = compare_delegate_codes(TfliteFile(path), [arrays])
    except QtoolError as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    if result is None:
        return "float operators: not compared"
    return "every code equal" if result.exact else "codes differ"


def mutated_files(count: int) -> None:
    """Read files with random changes; each has to end in a result or in a sentence."""
    model, calibration, _ = sample()["digits"]()
    quantized = qtool.quantize(model, [calibration[:64]], target="tflite", accuracy="fast")
    results, generator = collections.Counter[str](), np.random.default_rng(1)
    with scratch_folder() as folder:
        path = folder / "mutated.tflite"
        quantized.export(path, verify=False)
        original = path.read_bytes()
        for number in range(count):
            path.write_bytes(_mutated(original, generator, number % 3))
            try:
                qtool.inspect(path)
                qtool.verify(path, samples=1, batch_size=1)
                results["read and run"] += 1
            except QtoolError as error:
                one_line = "Traceback" not in str(error)
                results["refused in a sentence" if one_line else "traceback"] += 1
            except Exception as error:  # noqa: BLE001  # what is counted
                results[f"{type(error).__name__}: {error}"] += 1
    print(f"mutated files: {dict(results)}")


def _mutated(data: bytes, generator: np.random.Generator, how: int) -> bytes:
    """Return bytes changed (0), cut (1) or moved (2)."""
    place, other = (int(generator.integers(len(data))) for _ in range(2))
    if how == 1:
        return data[:place]
    changed = bytearray(data)
    if how == 2:
        length = int(generator.integers(1, 64))
        changed[place : place + length] = data[other : other + length]
        return bytes(changed)
    for at in generator.integers(len(data), size=8):
        changed[int(at)] = int(generator.integers(256))
    return bytes(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", metavar="MODULE:FUNCTION")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--random", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--mutated", type=int, default=0, metavar="COUNT")
    parser.add_argument("--first", type=int, default=0, help="number of the first random network")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    networks = sample() | vision()
    for source in options.sources:
        networks |= named(source)
    only = [n for n in options.only.split(",") if n]
    print(f"LiteRT profile, {microcontroller.TARGET}: see the module's text")
    print(" | ".join(HEAD), flush=True)
    for name, make in networks.items():
        if only and name not in only:
            continue
        try:
            print(" | ".join((name, *measure(make))), flush=True)
        except QtoolError as error:
            print(f"{name} | {type(error).__name__}: {error}", flush=True)
    if options.mutated:
        mutated_files(options.mutated)
    if options.random:
        random_networks(options.random, options.first)


if __name__ == "__main__":
    main()
