"""The step `batch-norm-reestimation`: channels have their float mean and deviation."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import batch_norm_reestimation
from qtool.algorithms.conversion_state import LESS_ACCURATE
from qtool.calibration.solve_parameters import BIAS_LIMIT
from tests.algorithms.restored import check_restored

FOUR_BITS = [{"op": "conv", "weights": "int4"}]


class Net(nn.Module):
    """Convolutions, a transposed one among them, and a linear layer without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.wide = nn.Conv2d(12, 12, 3, stride=2, groups=3)
        self.deep = nn.Conv2d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.deep(torch.relu(self.wide(torch.relu(self.stem(x))))))
        return self.head(h.mean((2, 3)))


def images(seed: int, count: int = 96) -> torch.Tensor:
    noise = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(noise, 5, 1, 2) * 3


@functools.cache
def captured() -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net().eval(), images(1)[:8])


def made(recipe: Any, *recover: str) -> qtool.QuantizedModel:
    return qtool.quantize(captured(), list(images(1).split(16)), recipe=recipe, recover=recover)


def sqnr(model: qtool.QuantizedModel) -> float:
    x = images(2)
    with torch.no_grad():
        exact, found = captured().graph.module(x), model(x)
    return float(10 * torch.log10(exact.square().sum() / (exact - found).square().sum()))


def test_results_on_new_data_are_nearer() -> None:
    assert sqnr(made(FOUR_BITS, "batch-norm-reestimation")) > sqnr(made(FOUR_BITS)) + 0.5


def test_codes_are_what_they_were() -> None:
    plain, found = made(FOUR_BITS), made(FOUR_BITS, "batch-norm-reestimation")
    for name in ("stem", "wide", "deep"):
        codes = []
        for model in (plain, found):
            (weight,) = (p for p in model.plan if p.name == f"{name}.weight")
            value = dict(model.graph.module.named_parameters())[_attribute(model, weight.tensor)]
            codes.append(model.parameters[weight.name].quantize(value.detach()))
        assert torch.equal(*codes)
        scales = [m.parameters[f"{name}.weight"].scale for m in (plain, found)]
        assert not torch.equal(*scales)
    head = [m.parameters["head.weight"].scale for m in (plain, found)]
    assert torch.equal(*head)  # without a bias it is left alone


def _attribute(model: qtool.QuantizedModel, tensor: str) -> str:
    nodes = model.graph.graph.nodes
    return next(str(n.target) for n in nodes if n.op == "get_attr" and _name(n) == tensor)


def _name(node: torch.fx.Node) -> str:
    return qtool.core.graph.name_of(node)


def test_channels_have_the_mean_and_the_width_they_had() -> None:
    """The last convolution's, seen through an identity head: of the data that it learned from."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()
    x = images(1)
    recipe = [{"op": "conv", "weights": "int4"}]
    plain, found = (
        qtool.quantize(net, list(x.split(16)), recipe=recipe, recover=r)
        for r in ((), ("batch-norm-reestimation",))
    )
    with torch.no_grad():
        exact, before, after = (m(x).movedim(1, 0).flatten(1) for m in (net, plain, found))
    assert _off(after.mean(1), exact.mean(1)) < _off(before.mean(1), exact.mean(1)) / 2
    assert _off(after.std(1), exact.std(1)) < _off(before.std(1), exact.std(1)) / 2


def _off(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().mean())


def test_the_file_holds_the_new_scales(tmp_path: Path) -> None:
    model = made(FOUR_BITS, "batch-norm-reestimation")
    assert {r.name: r.count for r in model.plan.rewrites}["batch-norm-reestimation"] == 3
    check_restored(model, captured(), images(3), tmp_path / "m.onnx")


def test_what_is_further_on_samples_kept_aside_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batch_norm_reestimation._moments

    def wrong(batches: Any, channel: int) -> tuple[torch.Tensor, torch.Tensor]:
        mean, width = whole(batches, channel)
        return mean + torch.rand(()), width

    torch.manual_seed(0)
    monkeypatch.setattr(batch_norm_reestimation, "_moments", wrong)
    model, plain = made(FOUR_BITS, "batch-norm-reestimation"), made(FOUR_BITS)
    assert f"batch-norm-reestimation: {LESS_ACCURATE}" in model.notes
    assert torch.equal(model(images(2)), plain(images(2)))


def test_a_bias_that_would_not_fit_leaves_its_layer_alone() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten()).eval()
    with torch.no_grad():
        net[0].weight.mul_(1e-9)  # its scale is as wide as the bias needs
    model = qtool.quantize(net, list(images(1).split(16)), recover=["batch-norm-reestimation"])
    for name in ("0", "2"):
        bias = dict(model.graph.module.named_parameters())[_attribute(model, f"{name}.bias")]
        codes = bias.detach().abs() / model.parameters[f"{name}.bias"].scale
        assert float(codes.max()) <= BIAS_LIMIT
