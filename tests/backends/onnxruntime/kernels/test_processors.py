"""Each profile gives what ONNX Runtime gave on its processors, six of them emulated."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.backends.kernels.fma import fma32
from qtool.backends.onnxruntime.kernels import functions
from qtool.backends.profiles import profile
from tests.backends.kernels import golden

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "tests/golden/processors/record.py"
PROFILES = {
    "vnni": "onnxruntime-x64",
    "haswell": "onnxruntime-avx2",
    "nehalem": "onnxruntime-sse41",
    "cortex-a53": "onnxruntime-neon",
    "neoverse-n1": "onnxruntime-neon",
    "neoverse-n2": "onnxruntime-neon",
    "wasm": "onnxruntime-wasm",
}
UNFUSED = ("onnxruntime-sse41", "onnxruntime-wasm")


@cache
def recorded() -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    with np.load(golden.FOLDER / "processors/results.npz") as arrays:
        cases = json.loads(arrays["cases"].tobytes())
        return cases, {k: torch.from_numpy(v) for k, v in arrays.items() if k != "cases"}


def function(name: str, values: torch.Tensor, chosen: str) -> torch.Tensor:
    """A float function in the arithmetic of a profile."""
    if name == "hard_sigmoid":
        madd = fma32 if chosen == "onnxruntime-neon" else functions.multiply_then_add
        return functions.hard_sigmoid(values, 0.3, 0.5, madd)
    madd = functions.multiply_then_add if chosen in UNFUSED else fma32
    result: torch.Tensor = getattr(functions, name)(values, madd)
    return result


def computed(case: dict[str, Any], tensors: dict[str, torch.Tensor], chosen: str) -> torch.Tensor:
    inputs = [tensors[name] for name in case["inputs"]]
    if case["op"].startswith("function "):
        return function(case["op"].removeprefix("function "), *inputs, chosen)
    args = [golden._argument(each, tensors) for each in case["args"]]
    return profile(chosen).bind(case["op"], *args, **case["kwargs"])(*inputs)


@cache
def results(chosen: str) -> list[torch.Tensor]:
    """Return the results of all cases in the arithmetic of a profile."""
    cases, tensors = recorded()
    return [computed(case, tensors, chosen) for case in cases]


def unlike(processor: str, chosen: str) -> list[str]:
    """The operators that a profile computes otherwise than a processor."""
    cases, tensors = recorded()
    return [
        case["op"]
        for case, result in zip(cases, results(chosen), strict=True)
        if not torch.equal(result, tensors[case["expected"][processor]])
    ]


@pytest.mark.parametrize("processor", PROFILES)
def test_a_profile_gives_the_codes_of_its_processors(processor: str) -> None:
    assert unlike(processor, PROFILES[processor]) == []


def test_other_profiles_would_be_seen() -> None:
    assert {"conv", "linear", "matmul"} <= set(unlike("haswell", "onnxruntime-x64"))
    last_bits = {f"function {name}" for name in ("tanh", "logistic", "silu", "gelu", "erf")}
    assert {"add", *last_bits} == set(unlike("nehalem", "onnxruntime-x64"))
    fixed_point = {"add", "mul", "function hard_sigmoid"}
    assert fixed_point == set(unlike("cortex-a53", "onnxruntime-x64"))
    assert {"add", "mul"} == set(unlike("wasm", "onnxruntime-sse41"))


EMULATORS = {"haswell": "Haswell", "nehalem": "Nehalem"}


@pytest.mark.parametrize("processor", EMULATORS)
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed")
def test_the_installed_runtime_gives_what_was_recorded(processor: str, tmp_path: Path) -> None:
    """Short: one model of all cases in an emulator."""
    emulator = ("qemu-x86_64", "-cpu", EMULATORS[processor])
    script = (sys.executable, str(SCRIPT))
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "OMP_NUM_THREADS": "1"}
    subprocess.run((*script, "make", str(tmp_path)), check=True)
    subprocess.run(
        (*emulator, *script, "run", str(tmp_path), processor),
        check=True,
        env=environment,
        stderr=subprocess.DEVNULL,  # warnings of the emulator
    )
    cases, tensors = recorded()
    with np.load(tmp_path / f"{processor}.npz") as found:
        for index, case in enumerate(cases):
            expected = tensors[case["expected"][processor]].numpy()
            assert np.array_equal(found[f"y{index}"], expected), case["op"]
