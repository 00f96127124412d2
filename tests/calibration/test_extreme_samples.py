"""A few samples far beyond all others are named, since they alone set the range."""

from __future__ import annotations

import torch

from qtool.calibration.data_warnings import DataWarnings
from qtool.core.random_inputs import Input

INPUTS = (Input("x", "float32", ("batch", 4)), Input("ids", "int64", ("batch", 4)))


def warnings(x: torch.Tensor) -> list[str]:
    found = DataWarnings(INPUTS)
    for rows in x.split(16):
        found.add([rows, torch.ones(len(rows), 4, dtype=torch.int64)])
    return [w for w in found.warnings(100) if "reaches" in w]


def test_batch_and_row_of_an_extreme_sample_are_named() -> None:
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    assert warnings(x) == []
    x[37, 2] = -5000
    (text,) = warnings(x)
    assert "input 'x' reaches 5e+03 in batch 2, row 5, " in text
    assert "in the median sample" in text


def test_data_that_is_wide_everywhere_is_not_named() -> None:
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    x[::8] *= 1000  # one in eight samples
    assert warnings(x) == []
