"""Sums of pairs that saturate, against one product after the other."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from qtool.backends.onnxruntime.kernels import avx2
from qtool.backends.profiles import profile
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params

RNG = np.random.default_rng(3)
AVX2, EXACT = profile("onnxruntime-avx2"), profile("onnxruntime-x64")


def one_by_one(x: np.ndarray, w: np.ndarray, zero: int) -> np.ndarray:
    """x [rows, K], w [out, K] -> sums as vpmaddubsw makes them; the zero point comes off last."""
    rows = np.zeros((len(x), len(w)), np.int64)
    for k in range(0, x.shape[1], 2):
        pair = x[:, k : k + 2].astype(np.int64) @ w[:, k : k + 2].astype(np.int64).T
        rows += np.clip(pair, -(2**15), 2**15 - 1)
    return rows - zero * w.astype(np.int64).sum(1)


def windows(x: np.ndarray, w: np.ndarray, zero: int, case: Mapping[str, Any]) -> np.ndarray:
    """A 2-d convolution as a product over its windows: position by position, then channels."""
    groups, stride, pad = case["groups"], case["stride"], case["pads"]
    out, inputs, *size = w.shape
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=zero)
    places = [(i, j) for i in range(0, x.shape[2] - size[0] + 1, stride)
              for j in range(0, x.shape[3] - size[1] + 1, stride)]  # fmt: skip
    result = np.zeros((len(x), out, len(places)), np.int64)
    for g in range(groups):
        own = slice(g * out // groups, (g + 1) * out // groups)
        channels = x[:, g * inputs : (g + 1) * inputs]
        flat = w[own].transpose(0, 2, 3, 1).reshape(out // groups, -1)
        for n, (i, j) in enumerate(places):
            seen = channels[:, :, i : i + size[0], j : j + size[1]].transpose(0, 2, 3, 1)
            result[:, own, n] = one_by_one(seen.reshape(len(x), -1), flat, zero)
    return result


def high(*shape: int) -> np.ndarray:
    return RNG.choice(np.array([127, 100, -127, -60, 9], np.int8), shape)


CONVOLUTIONS = {
    "even channels": ((5, 4, 3, 3), {"groups": 1, "stride": 1, "pads": 1}),
    "odd channels": ((6, 3, 3, 3), {"groups": 1, "stride": 2, "pads": 1}),
    "odd groups": ((4, 5, 2, 3), {"groups": 2, "stride": 1, "pads": 0}),
    "1x1": ((8, 7, 1, 1), {"groups": 1, "stride": 1, "pads": 0}),
    "several outputs of one channel": ((6, 1, 3, 3), {"groups": 3, "stride": 1, "pads": 2}),
}


@pytest.mark.parametrize(("shape", "case"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(shape: tuple[int, ...], case: Mapping[str, Any]) -> None:
    w = high(*shape)
    x = RNG.integers(0, 256, (2, shape[1] * case["groups"], 6, 7)).astype(np.uint8)
    given = params(UINT8, 0.01, 37), params(INT8, 0.001), params(UINT8, 1e-5 * 300, 5)
    sums = windows(x, w, 37, case)
    factor = np.float32(np.float32(0.01) * np.float32(0.001)) / np.float32(1e-5 * 300)
    expected = np.clip(np.rint(sums.astype(np.float32) * factor) + 5, 0, 255)
    codes = AVX2.bind("conv", *given, torch.from_numpy(w), **case)(torch.from_numpy(x)).numpy()
    assert (codes.reshape(expected.shape) == expected).all()
    exact = EXACT.bind("conv", *given, torch.from_numpy(w), **case)(torch.from_numpy(x)).numpy()
    assert (codes != exact).any()


@pytest.mark.parametrize("outputs", [9, 0])
@pytest.mark.parametrize("inputs", [0, 1, 2, 7, 64])
def test_products(inputs: int, outputs: int) -> None:
    w, x = high(outputs, inputs), RNG.integers(0, 256, (11, inputs)).astype(np.uint8)
    given = params(UINT8, 0.01, 200), params(INT8, 0.001), None
    found = AVX2.bind("linear", *given, torch.from_numpy(w))(torch.from_numpy(x)).numpy()
    factor = np.float32(0.01) * np.float32(0.001)
    assert (found == one_by_one(x, w, 200).astype(np.float32) * factor).all()


def test_products_of_activations() -> None:
    x, w = RNG.integers(0, 256, (3, 8)).astype(np.uint8), high(5, 8)
    given = params(UINT8, 0.01, 9), params(INT8, 0.001, 0), None
    found = AVX2.bind("matmul", *given)(torch.from_numpy(x), torch.from_numpy(w.T.copy())).numpy()
    factor = np.float32(0.01) * np.float32(0.001)
    assert (found == one_by_one(x, w, 9).astype(np.float32) * factor).all()


def test_depthwise_convolutions_and_uint8_weights_do_not_saturate() -> None:
    x, out = params(UINT8, 0.01, 3), params(UINT8, 0.02, 3)
    codes = torch.randint(0, 256, (1, 4, 6, 6), dtype=torch.uint8)
    depthwise = torch.full((4, 1, 3, 3), 127, dtype=torch.int8)
    unsigned = torch.full((4, 4, 3, 3), 255, dtype=torch.uint8)
    for w, weight, groups in ((INT8, depthwise, 4), (UINT8, unsigned, 1)):
        given = x, params(w, 0.001), out, weight
        kernels = (p.bind("conv", *given, groups=groups) for p in (AVX2, EXACT))
        one, other = (kernel(codes) for kernel in kernels)
        assert torch.equal(one, other)


def test_weights_that_cannot_saturate_cost_nothing() -> None:
    x, w = params(UINT8, 0.01, 3), params(INT8, 0.001)
    weight = torch.full((4, 6), 64, dtype=torch.int8)

    def sums(codes: torch.Tensor) -> torch.Tensor:
        return codes

    def columns(codes: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    assert avx2._saturating(sums, x, w, weight, 1, columns) is sums


def test_many_products_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = torch.from_numpy(high(9, 30)), torch.from_numpy(RNG.integers(0, 256, (11, 30)))
    given: tuple[QuantParams, ...] = (params(UINT8, 0.01, 200), params(INT8, 0.001))
    whole = AVX2.bind("linear", *given, None, w)(x.to(torch.uint8))
    monkeypatch.setattr(avx2, "_PIECE", 30)
    assert torch.equal(AVX2.bind("linear", *given, None, w)(x.to(torch.uint8)), whole)
