"""Sessions: the same answers from the adapter of each runtime."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.open_files import open_model
from qtool.backends.session import time_calls
from qtool.core.errors import QtoolError
from tests.needs import needs_litert


@pytest.mark.parametrize(
    ("suffix", "runtime"),
    [(".onnx", "onnxruntime [0-9.]+"), pytest.param(".tflite", "LiteRT", marks=needs_litert)],
)
def test_a_file_has_ports_runs_and_is_timed(suffix: str, runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 5).eval(), torch.randn(4, 3)
    path = tmp_path / f"net{suffix}"
    qtool.capture_model(model, x).export_float(path)
    session = open_model(path)
    (port,), (output,) = session.inputs, session.outputs
    assert (port.type, output.type) == ("tensor(float)", "tensor(float)")
    assert port.shape[1:] == (3,)
    assert not isinstance(port.shape[0], int)
    (y,) = session.run([x.numpy()])
    np.testing.assert_allclose(y, model(x).detach().numpy(), atol=1e-5)
    assert session.seconds([x.numpy()], 3, itertools.count().__next__) == 1  # from look to look
    for fails in (
        lambda: session.run([np.ones((2, 7), np.float32)]),
        lambda: session.seconds([np.ones((2, 7), np.float32)], 1, lambda: 0.0),
    ):
        # LiteRT runs some files at other sizes, with wrong results: qtool does not let it
        with pytest.raises(QtoolError, match=f"{runtime}|was written for|and the data has"):
            fails()


def test_calls_are_timed_by_the_clock() -> None:
    calls, ticks = itertools.count(), itertools.count()
    assert time_calls(lambda: next(calls), 5, lambda: float(next(ticks))) == 1
    assert next(calls) == 5
