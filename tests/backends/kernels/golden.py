"""Replays the recorded outputs of LiteRT's reference kernels (tests/golden/*.npz)."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtool.backends.kernels.params import NO_BOUNDS, RELU, RELU6, RELU_N1_TO_1
from qtool.backends.profiles import Profile, profile
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT16, UINT8

FOLDER = Path(__file__).parents[2] / "golden"
REFERENCE = profile("tflite")
TYPES = {"int8": INT8, "uint8": UINT8, "int16": INT16}
BOUNDS = {"none": NO_BOUNDS, "relu": RELU, "relu6": RELU6, "relu_n1_to_1": RELU_N1_TO_1}


@dataclass(frozen=True)
class Golden:
    """One recorded call; `expected` is None where the runtime refused the model or aborted."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Tensor, ...]
    expected: Tensor | None


@cache
def load(group: str) -> tuple[Golden, ...]:
    with np.load(FOLDER / f"{group}.npz") as arrays:
        described = json.loads(arrays["cases"].tobytes())["cases"]
        tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if k != "cases"}
    return tuple(_golden(d, tensors) for d in described)


def _golden(d: dict[str, Any], tensors: dict[str, Tensor]) -> Golden:
    kwargs = dict(d["kwargs"])
    if "bounds" in kwargs:
        kwargs["bounds"] = BOUNDS[kwargs["bounds"]]
    expected = None if d["expected"] is None else tensors[d["expected"]]
    inputs = tuple(tensors[name] for name in d["inputs"])
    return Golden(
        d["op"], tuple(_argument(a, tensors) for a in d["args"]), kwargs, inputs, expected
    )


def _argument(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_argument(v, tensors) for v in value]
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]]
    if isinstance(value, dict):
        scale = torch.tensor(value["scale"], dtype=torch.float32)
        zero = torch.tensor(value["zero"]).expand(scale.shape)
        return QuantParams(TYPES[value["type"]], scale, zero, value["axis"])
    return value


def replay(golden: Golden, using: Profile = REFERENCE) -> Tensor | None:
    """What our kernel makes of it; None where it refuses."""
    try:
        kernel = using.bind(golden.op, *golden.args, **golden.kwargs)
        return kernel(*golden.inputs)
    except KernelError:
        return None


def mismatches(group: str, using: Profile = REFERENCE) -> list[str]:
    """One line for every recorded case whose replay differs in anything."""
    lines = []
    for number, golden in enumerate(load(group)):
        got, want = replay(golden, using), golden.expected
        if got is None or want is None:
            if got is not want:
                lines.append(f"{group} {number}: one of kernel and runtime refuses")
        elif got.dtype != want.dtype or got.shape != want.shape:
            lines.append(f"{group} {number}: {got.dtype} {tuple(got.shape)}")
        elif not torch.equal(got, want):
            lines.append(f"{group} {number}: {int((got != want).sum())} of {want.numel()} differ")
    return lines
