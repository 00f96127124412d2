"""Random networks as TFLite files, and TFLite files with random bytes changed."""

from __future__ import annotations

import collections
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from tflite_networks import digits

import qtool
from qtool.backends.tflite import deployment, tflm
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_delegate_codes
from qtool.core import graph as G
from qtool.core.atomic import scratch_folder
from qtool.core.data import to_batch
from qtool.core.errors import ExportError, QtoolError

__all__ = ["mutated_files", "random_networks"]


def random_networks(seconds: float, first: int = 0, activations: str = "int8") -> None:
    """Convert random networks for some time, and count what becomes of them.

    Args:
        seconds: of the run.
        first: number of the network before the first one.
        activations: "int8", "int16", or "mixed" for a random type for each operator.
    """
    from tests.fuzz.draw_networks import draw_network

    runtimes = {name: collections.Counter[str]() for name in ("LiteRT", "XNNPACK", "TFLM")}
    values, end, number = collections.Counter[str](), time.monotonic() + seconds, first
    while time.monotonic() < end:
        number += 1
        try:
            network = draw_network(random.Random(number))  # noqa: S311  # no secret
            module, data = network.module(), [network.batch(32, i + 1) for i in range(2)]
            captured = qtool.capture_model(module, data[0])
        except QtoolError:
            runtimes["LiteRT"]["not captured"] += 1
            continue
        recipe = _recipe(captured, activations, number)
        with scratch_folder() as folder:
            for name, count in runtimes.items():
                path = folder / "model.tflite"
                outcome, compared = COMPARE[name](captured, data, path, recipe)
                count[outcome] += 1
                values[name] += compared
                if outcome not in FINE:
                    print(f"network {number}, {name}: {outcome}", flush=True)
                if name == "LiteRT" and outcome != EQUAL:
                    break
    print(f"random networks {first + 1} to {number}")
    for name, count in runtimes.items():
        print(f"{name}, {values[name]} output values: {dict(count.most_common())}")


Outcome = tuple[str, int]
EQUAL, REFUSED, NOTHING = "every code equal", "refused in a sentence", "nothing to quantize"
FINE = (EQUAL, REFUSED, NOTHING)


def _recipe(captured: Any, activations: str, number: int) -> dict[str, Any]:
    """Return a recipe with these types of activations."""
    wide = {"activations": "int16"}
    if activations == "mixed":
        chance = random.Random(number)  # noqa: S311  # no secret
        names = [G.name_of(n) for n in G.calls(captured.graph.module.graph)]
        return {"rules": [{"select": n, **wide} for n in names if chance.random() < 0.5]}
    return {"rules": [{"select": "*", **wide}] if activations == "int16" else []}


def _litert(captured: Any, data: Any, path: Path, recipe: Any) -> Outcome:
    """Convert, write and verify; the file stays."""
    options = {"target": "tflite", "accuracy": "fast", "recipe": recipe}
    try:
        quantized = qtool.quantize(captured, data, **options)
    except QtoolError:
        return NOTHING, 0
    try:
        result = quantized.export(path, timing=0)
    except ExportError:
        return REFUSED, 0
    except QtoolError as error:
        return f"{type(error).__name__}: {error}", 0
    assert result is not None
    assert result.exactness is not None
    return EQUAL if result.exactness.exact else "codes differ", result.exactness.elements


def _delegate(captured: Any, data: Any, path: Path, recipe: Any) -> Outcome:
    try:
        arrays = captured.graph.bind(to_batch(data[0])).arrays()
        result = compare_delegate_codes(TfliteFile(path), [[a[:4] for a in arrays]])
    except QtoolError as error:
        return f"{type(error).__name__}: {error}", 0
    return EQUAL if result.exact else f"codes differ: {result}", result.elements


def _micro(captured: Any, data: Any, path: Path, recipe: Any) -> Outcome:
    """Convert for microcontrollers, and compare TensorFlow Lite Micro with the engine."""
    options = {"target": deployment.TARGET, "accuracy": "fast", "recipe": recipe}
    try:
        quantized = qtool.quantize(captured, data, **options)
        quantized.export(path, verify=False)
    except QtoolError:
        return REFUSED, 0
    try:
        file = TfliteFile(path)
        arrays = [a[:4] for a in captured.graph.bind(to_batch(data[0])).arrays()]
        expected = file.engine_codes(file.program(tflm.PROFILE), arrays)
        results = tflm.run(path, file.arrays(arrays))
    except QtoolError as error:
        return f"{type(error).__name__}: {error}", 0
    count = sum(a.size for a in expected)
    equal = sum(int((a == b).sum()) for a, b in zip(expected, results, strict=True))
    return EQUAL if equal == count else f"{count - equal} of {count} codes differ", count


COMPARE = {"LiteRT": _litert, "XNNPACK": _delegate, "TFLM": _micro}


def mutated_files(count: int) -> None:
    """Read files with random changes; each has to end in a result or in a sentence."""
    network = digits()
    quantized = qtool.quantize(
        network.model, network.calibration[:2], target="tflite", accuracy="fast"
    )
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
                results[_refusal(str(error))] += 1
            except Exception as error:  # noqa: BLE001  # what is counted
                results[f"{type(error).__name__}: {error}"] += 1
    print(f"mutated files: {dict(results)}")


def _refusal(message: str) -> str:
    if "Traceback" in message or "\n" in message:
        return "more than a sentence"
    return "LiteRT crashes, in a sentence" if "crashes on" in message else REFUSED


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
