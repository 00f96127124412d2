"""The rounding of columns with error feedback, on matrices alone."""

from __future__ import annotations

import pytest
import torch

from qtool.recovery.gptq import Grid, inverse_of, round_columns, towards

STEP = 0.25


def grid_of(weight: torch.Tensor, most: int = 1000) -> Grid:
    return Grid(torch.full_like(weight, STEP), torch.zeros_like(weight), -most, most)


def inputs(groups: int = 2, size: int = 24, alike: float = 2.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    own = torch.randn(groups, 400, size, generator=draw, dtype=torch.float64)
    return own + alike * torch.randn(groups, 400, 1, generator=draw, dtype=torch.float64)


def weights(groups: int = 2, size: int = 24) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(groups, 7, size, generator=draw, dtype=torch.float64)


def error(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, xq: torch.Tensor) -> float:
    return float((x @ a.mT - xq @ b.mT).square().sum())


def test_results_are_nearer_than_those_of_the_nearest_values() -> None:
    x, w = inputs(), weights()
    found = round_columns(w, inverse_of(x.mT @ x), grid_of(w))
    assert torch.equal(found, torch.round(found / STEP) * STEP)
    nearest = torch.round(w / STEP) * STEP
    assert error(w, found, x, x) < 0.5 * error(w, nearest, x, x)


def test_inputs_that_have_nothing_in_common_are_rounded_to_nearest() -> None:
    w = weights()
    alone = torch.eye(24, dtype=torch.float64).expand(2, 24, 24)
    assert torch.equal(
        round_columns(w, inverse_of(alone), grid_of(w)), torch.round(w / STEP) * STEP
    )


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_free_weights_repair_what_was_done_to_the_inputs(noise: float) -> None:
    x, w = inputs(), weights()
    draw = torch.Generator().manual_seed(2)
    xq = 0.9 * x + noise * torch.randn(x.shape, generator=draw, dtype=torch.float64)
    missing = (x @ w.mT - xq @ w.mT).mT @ xq
    free = towards(w, missing, inverse_of(xq.mT @ xq, damp=1e-9))
    assert error(w, free, x, xq) < error(w, w, x, xq) * (0.9 if noise else 1e-6)


def test_an_input_that_is_always_zero_does_no_harm() -> None:
    x, w = inputs(), weights()
    x[:, :, 3] = 0
    inverse = inverse_of(x.mT @ x)
    found = round_columns(towards(w, torch.zeros_like(w), inverse), inverse, grid_of(w))
    assert torch.isfinite(found).all()
    assert torch.equal(found[:, :, 3], torch.round(w[:, :, 3] / STEP) * STEP)


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    x = inputs()
    moments = x.mT @ x
    found = inverse_of(moments, damp=0.5)
    damped = moments + 0.5 * torch.diag_embed(
        moments.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).expand(-1, 24)
    )
    damped = damped[:, found.order][:, :, found.order]
    assert torch.equal(found.upper, found.upper.triu())
    identity = damped @ found.upper.mT @ found.upper
    assert torch.allclose(identity, torch.eye(24, dtype=torch.float64).expand(2, 24, 24))
