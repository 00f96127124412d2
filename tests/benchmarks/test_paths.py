"""What the tracer of benchmarks/paths.py takes for data."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.paths import MARK, MASK, Tracer
from qtool.core.data import Batch, batches

PLAIN = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
MARKED = (PLAIN.view(np.uint32) & ~MASK | MARK).view(np.float32)


def _held(array: Any) -> Iterator[Any]:
    """Yield values that hold an array."""
    tensor = torch.from_numpy(array.copy())
    yield from (array, tensor, [array], {"x": (array,)}, Batch((tensor,)))
    yield itertools.chain([], [array])
    yield map(str, [array])
    yield batches([array])


@pytest.mark.parametrize(("array", "is_data"), [(PLAIN, False), (MARKED, True)])
def test_data_is_what_holds_a_marked_array(array: Any, is_data: bool) -> None:
    assert [Tracer().is_data(value) for value in _held(array)] == [is_data] * 8


def test_data_is_what_was_loaded() -> None:
    tracer, rows = Tracer(), object()
    assert not tracer.is_data(rows)
    tracer.loaded.append(rows)
    assert tracer.is_data([rows])


@pytest.mark.matrix
def test_data_and_a_convolution_take_short_ways() -> None:
    script = Path(__file__).parents[2] / "benchmarks/paths.py"
    words = [sys.executable, str(script), "quantize", "convolution"]
    done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE)
    stream = re.search(r"^quantize, stream: passed through (\d+)", done.stdout, re.MULTILINE)
    layer = re.search(r"^convolution: .* (\d+) get the layer", done.stdout, re.MULTILINE)
    assert stream is not None
    assert layer is not None
    assert int(stream[1]) <= 12
    assert int(layer[1]) <= 27
