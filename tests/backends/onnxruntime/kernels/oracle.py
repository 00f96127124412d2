"""Random and tie-prone parameters, and the one comparison all tests of this folder use."""

from typing import Any

import numpy as np
import pytest
import torch

from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.profiles import profile
from qtool.core.quant_params import QuantParams
from qtool.core.types import QType
from tests.backends.kernels.ort_session import params

PROFILE = machine_profile()
BIND = profile(PROFILE).bind  # what the runtime here computes
_OTHER = "this formula is not that of this CPU"
VNNI = pytest.mark.skipif(PROFILE != "onnxruntime-x64", reason=_OTHER)
FUSED = pytest.mark.skipif(
    PROFILE not in ("onnxruntime-x64", "onnxruntime-avx2"), reason=_OTHER
)  # additions in fused multiply-adds
KINDS = ("random", "powers of two", "small multiples")


class Draw:
    """Reproducible parameters and codes."""

    def __init__(self, seed: int, kind: str = "random") -> None:
        self.rng, self.kind = np.random.default_rng(seed), kind

    def scale(self) -> float:
        if self.kind == "powers of two":  # ratios are exact, so results fall on ties
            return float(2.0 ** self.rng.integers(-8, 2))
        if self.kind == "small multiples":
            return float(np.float32(0.0173) * np.float32(self.rng.integers(1, 9)))
        return float(np.float32(np.exp(self.rng.uniform(-6, 1))))

    def params(self, qtype: QType, scale: float | None = None) -> QuantParams:
        zero = int(self.rng.integers(qtype.qmin, qtype.qmax + 1))
        return params(qtype, self.scale() if scale is None else scale, zero)

    def codes(self, qtype: QType, *shape: int) -> np.ndarray:
        return self.rng.integers(qtype.qmin, qtype.qmax + 1, shape).astype(qtype.numpy_dtype)

    def bias(self, channels: int, limit: int = 20_000) -> np.ndarray:
        return self.rng.integers(-limit, limit, channels).astype(np.int32)


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def every_code(qtype: QType) -> np.ndarray:
    """All 256 codes as [1, 1, 16, 16]."""
    codes = np.arange(qtype.qmin, qtype.qmax + 1).astype(qtype.numpy_dtype)
    return codes.reshape(1, 1, 16, 16)


def assert_same(got: torch.Tensor, runtime: tuple[np.ndarray, list[str]], *ops: str) -> None:
    """Same type, shape and every element; and the runtime really ran `ops`."""
    want, ran = runtime
    assert [op for op in ran if op != "Transpose"] == list(ops)
    assert got.numpy().dtype == want.dtype
    assert tuple(got.shape) == want.shape
    differ = got.numpy() != want
    assert not differ.any(), f"{int(differ.sum())} of {want.size} differ"
