"""The step `weight-scale-search`: smaller errors of weights, and consistent bias scales."""

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.weight_scale_search import fit_scales
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT4, INT8_NARROW, QType
from qtool.planning.targets.saturation import largest_pair_sums
from tests.algorithms.restored import check_restored

FOUR_BITS = [{"op": "conv", "weights": "int4"}]


def weights(seed: int = 0) -> torch.Tensor:
    return torch.randn(6, 40, generator=torch.Generator().manual_seed(seed))


def by_extremes(weight: torch.Tensor, qtype: QType) -> QuantParams:
    scale = weight.abs().amax(1) / qtype.qmax
    return QuantParams(qtype, scale, torch.zeros(len(scale), dtype=torch.int64), axis=0)


def error(weight: torch.Tensor, params: QuantParams) -> torch.Tensor:
    return (weight - params.round_trip(weight)).square().sum(1)


@pytest.mark.parametrize(("qtype", "gain"), [(INT4, 0.95), (INT8_NARROW, 1.0)])
def test_no_channel_is_worse_and_few_bits_are_better(qtype: QType, gain: float) -> None:
    w, params = weights(), by_extremes(weights(), qtype)
    found = fit_scales(w, params)
    assert (error(w, found) <= error(w, params)).all()
    assert error(w, found).sum() <= gain * error(w, params).sum()


def test_a_channel_of_zeros_keeps_its_scale() -> None:
    w = weights()
    w[2] = 0
    params = by_extremes(weights(), INT4)
    assert fit_scales(w, params).scale[2] == params.scale[2]


def test_the_file_holds_the_scales_and_their_biases(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    x = torch.randn(8, 3, 8, 8)
    captured = qtool.capture_model(net.eval(), x)
    plain = qtool.quantize(captured, [x], recipe=FOUR_BITS)
    model = qtool.quantize(captured, [x], recipe=FOUR_BITS, recover=["weight-scale-search"])
    assert {r.name: r.count for r in model.plan.rewrites}["weight-scale-search"] == 2
    assert not torch.equal(model.parameters["0.weight"].scale, plain.parameters["0.weight"].scale)
    check_restored(model, captured, x, tmp_path / "m.onnx")


def test_fitted_scales_keep_the_limit_of_pairs() -> None:
    """Least squares makes scales smaller, and codes larger."""
    layer = nn.Linear(32, 8).eval()
    with torch.no_grad():
        layer.weight[:, ::5] *= 6  # what a least-squares scale clips
    captured = qtool.capture_model(layer, torch.randn(4, 32))
    model = qtool.quantize(captured, [torch.randn(4, 32)], recover=["weight-scale-search"])
    codes = model.parameters["linear.weight"].quantize(layer.weight.detach())
    assert int(largest_pair_sums(codes, 0).max()) <= 128
