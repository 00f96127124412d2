"""Attention whose mask lets a query see nothing gives zeros in the file, as in torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from qtool.backends.onnx.export import float_onnx
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import run
from tests.passes.differential import Function

SEEN = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]).bool()
LEAST = torch.finfo(torch.float32).min
MASKS = {
    "bool": SEEN,
    "minus infinity": torch.zeros(4, 4).masked_fill(~SEEN, -math.inf),
    "the least number": torch.zeros(4, 4).masked_fill(~SEEN, LEAST),  # sees all, evenly
    "for each head": torch.stack([SEEN, SEEN.flip(0)]),
    "for each sample": SEEN.flip(1).view(1, 1, 4, 4),
    "nothing at all": torch.zeros(1, 1, dtype=torch.bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_query_that_sees_nothing(name: str) -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, 2 * x, x + 1, MASKS[name])

    x = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    file = float_onnx(capture_model(Function(attend).eval(), x).graph)
    for optimise in (False, True):
        (found,) = run(file, (x,), optimise)
        np.testing.assert_allclose(found, attend(x).numpy(), rtol=1e-5, atol=1e-6)


CHOSEN = {
    "chosen of finite numbers": (lambda x: torch.where(x[:1, :1, :, :4] > 0, 0.0, LEAST), 0),
    "and moved about": (lambda x: torch.where(x[0, 0, :, :4] > 0, 0.0, -9.0)[None, None], 0),
    "stored": (lambda _: MASKS["the least number"], 0),
    "chosen of infinity": (lambda x: torch.where(x[:1, :1, :, :4] > 0, 0.0, -math.inf), 1),
    "computed": (lambda x: x[:1, :1, :, :4] * 2, 1),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_mask_known_to_be_finite_is_not_looked_at(name: str) -> None:
    make, looks = CHOSEN[name]
    model = Function(lambda x: F.scaled_dot_product_attention(x, 2 * x, x + 1, make(x))).eval()
    x = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    file = float_onnx(capture_model(model, x).graph)
    assert [n.op_type for n in file.graph.node].count("ReduceMax") == looks
    (found,) = run(file, (x,))
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-6)
