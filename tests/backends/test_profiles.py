"""The named sets of kernels."""

from __future__ import annotations

import pytest
import torch

from qtool.backends.profiles import PROFILES, profile
from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params

NAMES = [
    *("onnxruntime-avx2", "onnxruntime-neon", "onnxruntime-sse41", "onnxruntime-wasm"),
    *("onnxruntime-x64", "tflite", "tflite-2", "tflite-micro", "tflite-optimized", "xnnpack"),
]


def test_profiles_by_name():
    assert sorted(PROFILES) == NAMES
    assert all(profile(name).name == name for name in PROFILES)


def test_unknown_profile_names_the_others():
    with pytest.raises(KernelError, match=f"'tfl'; choose one of {', '.join(NAMES)}"):
        profile("tfl")


@pytest.mark.parametrize("name", PROFILES)
def test_unknown_operator_names_profile_and_operator(name):
    with pytest.raises(KernelError, match=rf"profile {name} has no kernel for 'erf'"):
        profile(name).bind("erf")


def test_profiles_are_frozen():
    with pytest.raises(TypeError):
        profile("tflite").binders["add"] = None  # type: ignore[index]


def test_both_fully_connected_forms_have_a_name():
    older, newer = profile("tflite").binders, profile("tflite-2").binders
    assert older["linear"] is not newer["linear"]
    assert newer["linear"] is older["linear_float"]
    assert {k: v for k, v in older.items() if k != "linear"} == {
        k: v for k, v in newer.items() if k != "linear"
    }


@pytest.mark.parametrize(
    ("name", "op", "args", "kwargs", "message"),
    [
        ("tflite", "add", [params(INT8, 2.0**19), *[params(INT8, 1)] * 2], {}, "aborts"),
        ("tflite", "add", [params(INT8, 1), params(UINT8, 1), params(INT8, 1)], {}, "one type"),
        ("tflite", "relu", [params(INT8, 1)] * 2, {"bounds": (0, 3)}, "no RELU"),
        ("tflite", "sigmoid", [params(INT8, 1)] * 2, {}, "fixed output scale"),
        ("tflite", "softmax", [params(INT8, 1)] * 2, {}, "fixed output scale"),
        ("tflite", "hard_swish", [params(INT8, 128), params(INT8, 1)], {}, "larger output scale"),
        ("tflite", "quantize", [params(UINT8, [1.0, 2.0], 0, 0)], {}, "per-channel"),
        ("onnxruntime-x64", "max_pool", [params(UINT8, 1), params(UINT8, 2)],
         {"kernel": (2,), "stride": (1,)}, "share them"),
        ("onnxruntime-x64", "gelu", [params(UINT8, 1)] * 2, {"approximate": "tanh"}, "erf form"),
    ],
)  # fmt: skip
def test_binding_refuses_with_a_reason(name, op, args, kwargs, message):
    with pytest.raises(KernelError, match=message):
        profile(name).bind(op, *args, **kwargs)


def test_a_bound_kernel_is_a_function_of_codes():
    add = profile("tflite").bind("add", *[params(INT8, 0.1)] * 3)
    one = torch.ones(2, dtype=torch.int8)
    assert add(one, one).tolist() == [2, 2]
