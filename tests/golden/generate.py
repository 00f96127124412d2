"""Record LiteRT's reference kernels into the golden files beside this script.

    pip install 'ai-edge-litert>=2.0'
    python tests/golden/generate.py [GROUP ...]

With ai-edge-litert 1.2 (the last whose fully connected kernel is integer-only) it records the
group `linear`; with newer ones, every other group. The tests replay the files without LiteRT.

A file holds, per case, the operator key and the arguments of `Profile.bind`, the input arrays and
the expected output, or the fact that the runtime refused or aborted.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import cases
import cases_unary as unary
import numpy as np
from litert_model import Quant, run

HERE = Path(__file__).parent
GROUPS: dict[str, Callable[[], Iterable[cases.Case]]] = {
    "add": partial(cases.binary, "add"),
    "average_pool": partial(unary.pool, "average_pool"),
    "concat": cases.concat,
    "conv": partial(cases.conv, depthwise=False),
    "conv_depthwise": partial(cases.conv, depthwise=True),
    "conv_transpose": cases.conv_transpose,
    "dequantize": unary.dequantize,
    "gelu": partial(unary.table, "gelu"),
    "hard_swish": unary.hard_swish,
    "leaky_relu": unary.leaky_relu,
    "linear": partial(cases.linear, "linear"),
    "linear_float": partial(cases.linear, "linear_float"),
    "matmul": cases.matmul,
    "max_pool": partial(unary.pool, "max_pool"),
    "mean": unary.mean,
    "mul": partial(cases.binary, "mul"),
    "pad": unary.pad,
    "prelu": unary.prelu,
    "quantize": unary.quantize,
    "relu": unary.relu,
    "requantize": unary.requantize,
    "sigmoid": partial(unary.table, "sigmoid"),
    "softmax": unary.softmax,
    "sub": partial(cases.binary, "sub"),
    "tanh": partial(unary.table, "tanh"),
}


class Recorder:
    """Collects arrays under short names, equal ones once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def array(self, value: np.ndarray) -> str:
        key = (str(value.dtype), value.shape, value.tobytes())
        name = self._names.setdefault(key, f"a{len(self._names)}")
        self.arrays[name] = value
        return name

    def argument(self, value: Any) -> Any:
        """A bind argument as JSON: parameters, lists of them, arrays by name, None."""
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, np.ndarray):
            return {"array": self.array(value)}
        if isinstance(value, Quant):
            scale = np.asarray(value.scale, np.float32).astype(float).tolist()
            zero = np.asarray(value.zero).tolist()
            return {"type": value.dtype, "scale": scale, "zero": zero, "axis": value.axis}
        return value


def record(case: cases.Case, to: Recorder) -> dict[str, Any]:
    """Run one case and describe it."""
    result = run(case.net.serialize(case.output), case.inputs)
    inputs = case.inputs
    if case.channels_first:
        inputs = [np.moveaxis(x, -1, 1) for x in inputs]
        result = None if result is None else np.moveaxis(result, -1, 1)
    return {
        "op": case.op,
        "args": to.argument(case.args),
        "kwargs": case.kwargs,
        "inputs": [to.array(np.ascontiguousarray(x)) for x in inputs],
        "expected": None if result is None else to.array(np.ascontiguousarray(result)),
    }


def main(names: list[str]) -> None:
    version = importlib.metadata.version("ai-edge-litert")
    legacy = version.startswith("1.2.")
    for name in names or GROUPS:
        if (name == "linear") != legacy:
            continue
        to = Recorder()
        described = [record(case, to) for case in GROUPS[name]()]
        text = json.dumps({"litert": version, "cases": described}, separators=(",", ":"))
        arrays = {**to.arrays, "cases": np.frombuffer(text.encode(), np.uint8)}
        np.savez_compressed(HERE / f"{name}.npz", **arrays)
        refused = sum(d["expected"] is None for d in described)
        size = (HERE / f"{name}.npz").stat().st_size
        sys.stdout.write(f"{name}: {len(described)} cases, {refused} refused, {size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
