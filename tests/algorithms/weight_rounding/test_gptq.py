"""The rounding of columns with error feedback, on matrices alone."""

from dataclasses import replace

import pytest
import torch

from qtool.algorithms.weight_rounding.gptq import (
    BLOCK_COLUMNS,
    Grid,
    PairBounds,
    correct_weight,
    invert_hessian,
    round_columns,
)
from qtool.planning.targets.saturation import pair_partners

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
    found = round_columns(w, invert_hessian(x.mT @ x), grid_of(w))
    assert torch.equal(found, torch.round(found / STEP) * STEP)
    nearest = torch.round(w / STEP) * STEP
    assert error(w, found, x, x) < 0.5 * error(w, nearest, x, x)


def test_pruned_weights_become_zero_again_and_others_compensate() -> None:
    x, w = inputs(), weights()
    pruned = torch.rand(w.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    moved = torch.where(pruned, 0.3 * weights().flip(2), w)  # towards the target of a layer
    inverse, grid = invert_hessian(x.mT @ x), grid_of(w)
    assert bool(round_columns(moved, inverse, grid)[pruned].any())
    rounded = round_columns(moved, inverse, replace(grid, zeros=pruned))
    assert not bool(rounded[pruned].any())
    nearest = torch.where(pruned, 0, torch.round(moved / STEP) * STEP)
    assert error(moved, rounded, x, x) < 0.5 * error(moved, nearest, x, x)


def test_inputs_that_have_nothing_in_common_are_rounded_to_nearest() -> None:
    w = weights()
    alone = torch.eye(24, dtype=torch.float64).expand(2, 24, 24)
    assert torch.equal(
        round_columns(w, invert_hessian(alone), grid_of(w)), torch.round(w / STEP) * STEP
    )


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_free_weights_repair_what_was_done_to_the_inputs(noise: float) -> None:
    x, w = inputs(), weights()
    draw = torch.Generator().manual_seed(2)
    xq = 0.9 * x + noise * torch.randn(x.shape, generator=draw, dtype=torch.float64)
    missing = (x @ w.mT - xq @ w.mT).mT @ xq
    free = correct_weight(w, missing, invert_hessian(xq.mT @ xq, damping=1e-9))
    assert error(w, free, x, xq) < error(w, w, x, xq) * (0.9 if noise else 1e-6)


def test_an_input_that_is_always_zero_does_no_harm() -> None:
    x, w = inputs(), weights()
    x[:, :, 3] = 0
    inverse = invert_hessian(x.mT @ x)
    found = round_columns(correct_weight(w, torch.zeros_like(w), inverse), inverse, grid_of(w))
    assert torch.isfinite(found).all()
    assert torch.equal(found[:, :, 3], torch.round(w[:, :, 3] / STEP) * STEP)


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    x = inputs()
    moments = x.mT @ x
    found = invert_hessian(moments, damping=0.5)
    damped = moments + 0.5 * torch.diag_embed(
        moments.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).expand(-1, 24)
    )
    damped = damped[:, found.order][:, :, found.order]
    assert torch.equal(found.upper, found.upper.triu())
    identity = damped @ found.upper.mT @ found.upper
    assert torch.allclose(identity, torch.eye(24, dtype=torch.float64).expand(2, 24, 24))


def test_columns_of_large_inputs_are_first_and_keep_their_scales() -> None:
    w, sizes = weights(), torch.arange(1.0, 25, dtype=torch.float64)
    inverse = invert_hessian(torch.diag(sizes).expand(2, 24, 24))
    assert inverse.order.tolist() == list(range(23, -1, -1))
    scale = (STEP / sizes).expand_as(w)
    rounded = round_columns(w, inverse, replace(grid_of(w), scale=scale))
    assert torch.equal(rounded, torch.round(w / scale) * scale)


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * BLOCK_COLUMNS + 8
    x, w = inputs(size=size), weights(size=size)
    inverse = invert_hessian(x.mT @ x)
    blocks = round_columns(w, inverse, grid_of(w))
    monkeypatch.setattr("qtool.algorithms.weight_rounding.gptq.BLOCK_COLUMNS", size)
    assert torch.equal(round_columns(w, inverse, grid_of(w)), blocks)


LIMIT = 12


def limited(weight: torch.Tensor, limit: int = LIMIT) -> Grid:
    bounds = PairBounds(weight.shape[:2], pair_partners(weight.shape[1:]), -10, 10, limit)
    return replace(grid_of(weight, most=10), pairs=bounds)


def largest_sum(rounded: torch.Tensor) -> int:
    codes = (rounded / STEP).round()
    above, below = codes.clamp(min=0), (-codes).clamp(min=0)
    return max(int((p[..., 0::2] + p[..., 1::2]).max()) for p in (above, below))


def test_no_pair_exceeds_the_limit_and_others_repair_it() -> None:
    x, w = inputs(), weights()
    free = round_columns(w, invert_hessian(x.mT @ x), grid_of(w, most=10))
    assert largest_sum(free) > LIMIT
    kept = round_columns(w, invert_hessian(x.mT @ x), limited(w))
    assert largest_sum(kept) <= LIMIT
    nearest = limited(w)  # the same bounds without anything that is fed back
    alone = torch.eye(24, dtype=torch.float64).expand(2, 24, 24)
    unrepaired = round_columns(w, invert_hessian(alone), nearest)
    assert largest_sum(unrepaired) <= LIMIT
    assert error(w, kept, x, x) < 0.5 * error(w, unrepaired, x, x)


def test_a_limit_that_no_pair_reaches_changes_nothing() -> None:
    x, w = inputs(), weights()
    inverse = invert_hessian(x.mT @ x)
    free = round_columns(w, inverse, grid_of(w, most=10))
    assert torch.equal(round_columns(w, inverse, limited(w, limit=20)), free)


def test_bounds_reach_over_the_parts_of_a_matrix() -> None:
    x, w = inputs(), weights()
    whole = limited(w)
    done = []
    for start in (0, 11):  # an odd cut parts a pair
        part = slice(start, 11 if not start else 24)
        cut = replace(
            whole, scale=whole.scale[..., part], zero_point=whole.zero_point[..., part], first=start
        )
        done.append(round_columns(w[..., part], invert_hessian((x.mT @ x)[:, part, part]), cut))
    assert largest_sum(torch.cat(done, 2)) <= LIMIT
