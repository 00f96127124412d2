"""The runtime tells which kernels it has here, by what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch

from qtool.backends.onnxruntime import cpu
from qtool.backends.profiles import PROFILES, Profile

OWN = [p for p in PROFILES.values() if p.family == "onnxruntime"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    cpu.machine_profile.cache_clear()
    yield
    cpu.machine_profile.cache_clear()


def answers(profile: Profile) -> tuple[bytes, bytes]:
    """What the model of two nodes gives in the arithmetic of a profile."""
    weight = cpu.QuantParams(cpu.INT8, torch.ones(()), torch.zeros((), dtype=torch.int64))
    product = profile.bind("matmul_integer", weight, torch.from_numpy(cpu._WEIGHT.T.copy()))
    add = profile.bind("add", *(cpu._params(*p) for p in cpu._ADD))
    total = add(*map(torch.from_numpy, cpu._PAIRS))
    return product(torch.from_numpy(cpu._CODES)).numpy().tobytes(), total.numpy().tobytes()


def test_the_runtime_here_has_one_of_the_profiles() -> None:
    product, total = cpu._run_probe()
    found = [p.name for p in OWN if cpu._reproduces(p, product, total)]
    assert found == [cpu.machine_profile()]


def test_no_two_profiles_give_the_same() -> None:
    given = {p.name: answers(p) for p in OWN}
    assert all(given[a] != given[b] for a, b in combinations(given, 2))


@pytest.mark.parametrize("profile", OWN, ids=str)
def test_each_profile_is_recognized(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    product, total = answers(profile)
    shape = (len(cpu._CODES), cpu._WEIGHT.shape[1])
    given = np.frombuffer(product, np.int32).reshape(shape), np.frombuffer(total, np.uint8)
    monkeypatch.setattr(cpu, "_run_probe", lambda: given)
    assert cpu.machine_profile() == profile.name


def test_the_default_stands_in_for_unknown_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    product, total = cpu._run_probe()
    monkeypatch.setattr(cpu, "_run_probe", lambda: (product, total + 1))
    assert cpu.machine_profile() == cpu.DEFAULT_PROFILE


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = []
    ask = cpu._run_probe
    monkeypatch.setattr(cpu, "_run_probe", lambda: count.append(0) or ask())
    assert cpu.machine_profile() == cpu.machine_profile()
    assert len(count) == 1
