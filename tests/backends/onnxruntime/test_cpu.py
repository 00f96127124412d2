"""The runtime tells which kernels it has here, by what they compute."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from qtool.backends.onnxruntime import cpu
from qtool.backends.profiles import PROFILES, Profile
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, UINT8

OWN = [p for p in PROFILES.values() if p.family == "onnxruntime"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    cpu.machine_profile.cache_clear()
    yield
    cpu.machine_profile.cache_clear()


def _params(scale: float, zero: int) -> QuantParams:
    return QuantParams(UINT8, torch.tensor(scale, dtype=torch.float32), torch.tensor(zero))


def answers(profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    """What the model of two nodes gives in the arithmetic of a profile."""
    weight = QuantParams(INT8, torch.ones(()), torch.zeros((), dtype=torch.int64))
    product = profile.bind("matmul_integer", weight, torch.from_numpy(cpu._WEIGHT.T.copy()))
    add = profile.bind("add", *(_params(*p) for p in cpu._ADD))
    total = add(*map(torch.from_numpy, cpu._PAIRS))
    return product(torch.from_numpy(cpu._CODES)).numpy(), total.numpy()


def test_the_runtime_here_has_one_of_the_profiles() -> None:
    assert cpu.digest_of(*cpu._run_probe()) in cpu._RESULTS


def test_the_digests_are_those_of_the_kernels() -> None:
    assert {cpu.digest_of(*answers(p)): p.name for p in OWN} == cpu._RESULTS


def test_the_default_stands_in_for_unknown_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    product, total = cpu._run_probe()
    monkeypatch.setattr(cpu, "_run_probe", lambda: (product, total + 1))
    assert cpu.machine_profile() == cpu.DEFAULT_PROFILE
