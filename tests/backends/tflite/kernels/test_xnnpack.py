"""The profile "xnnpack" equals LiteRT with its default delegate in every code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import qtool
from qtool.backends.profiles import PROFILES, profile
from qtool.backends.tflite import litert
from qtool.backends.tflite.engine import lower
from qtool.backends.tflite.file import to_bytes
from qtool.core.errors import KernelError
from qtool.core.types import INT8, INT16
from tests.backends.kernels.ort_session import params
from tests.backends.tflite.kernels.xnnpack_models import KINDS, model
from tests.needs import needs_litert
from tests.planning.targets.converted import converted

REFERENCE = PROFILES["tflite-2"].binders
OWN = [key for key, bind in PROFILES["xnnpack"].binders.items() if bind is not REFERENCE[key]]
ALIKE = ("ADD", "FULLY_CONNECTED", "LOGISTIC", "SUB", "TANH")
"""Kinds in which few codes differ from those of the reference kernels, or none."""


@needs_litert
@pytest.mark.parametrize("kind", KINDS)
def test_random_models_of_one_operator(kind: str, tmp_path: Path) -> None:
    path, generator = tmp_path / "model.tflite", np.random.default_rng(1)
    changed = 0
    for _ in range(4):
        drawn, inputs = model(generator, kind)
        path.write_bytes(to_bytes(drawn))
        assert not litert.partitioning(path).remaining, "XNNPACK takes it"
        (expected,) = litert.run_default(path, inputs)
        tensors = [torch.from_numpy(a) for a in inputs]
        (actual,) = lower(drawn, litert.DELEGATE_PROFILE)(*tensors)
        assert np.array_equal(expected, actual.numpy())
        (reference,) = lower(drawn, litert.reference_profile())(*tensors)
        changed += int((reference != actual).sum())
    assert changed or kind in ALIKE, "the kernels are others"


@needs_litert
@pytest.mark.parametrize("name", ["digits", "residual_concat"])
def test_whole_networks(name: str, tmp_path: Path) -> None:
    converted(name, "tflite").export(tmp_path / "model.tflite", verify=False)
    result = qtool.verify(tmp_path / "model.tflite", samples=8, batch_size=4)
    assert result.exact
    assert result.delegate is not None
    assert result.delegate.exact
    assert "XNNPACK" in str(result)


@pytest.mark.parametrize("key", ["add", "mul", "sub"])
def test_other_types_are_refused(key: str) -> None:
    with pytest.raises(KernelError, match="take int8 here"):
        profile("xnnpack").bind(key, params(INT8, 1), params(INT16, 1), params(INT8, 1))


def test_kernels_of_its_own() -> None:
    assert set(OWN) >= {"add", "conv", "linear", "mean", "mul", "quantize", "requantize"}
