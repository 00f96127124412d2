"""Batches on a device, in their order, each with its own values."""

from __future__ import annotations

import copy

import pytest
import torch

from qtool.api.conversion import calibrate
from qtool.calibration.collect import prefetch
from qtool.core.data import Batch
from tests.backends.onnx.export.networks import Residual


def batches() -> list[Batch]:
    return [Batch((torch.full((4, 3), float(i)),), {"n": i}) for i in range(5)]


def test_on_the_cpu_a_batch_is_read_when_it_is_asked_for() -> None:
    source = iter(batches())
    batch, moved = next(prefetch(source, torch.device("cpu")))
    assert (batch.kwargs["n"], moved.args[0] is batch.args[0]) == (0, True)
    assert next(source).kwargs["n"] == 1


@pytest.mark.cuda
def test_on_a_gpu_all_are_there() -> None:
    found = list(prefetch(batches(), torch.device("cuda")))
    for i, (batch, moved) in enumerate(found):
        assert moved.args[0].is_cuda
        assert (batch.kwargs["n"], moved.kwargs["n"]) == (i, i)
        assert (moved.args[0].cpu() == i).all()


@pytest.mark.cuda
def test_a_model_on_a_gpu_sees_what_it_sees_with_data_that_is_there() -> None:
    torch.manual_seed(0)
    model, data = Residual().eval().cuda(), [torch.randn(8, 4, 8, 8) for _ in range(6)]
    here = calibrate(copy.deepcopy(model), data)
    there = calibrate(copy.deepcopy(model), [x.cuda() for x in data])
    assert here.to_bytes() == there.to_bytes()
