"""The step `bias-correction`: mean results as in float, and nothing else changed."""

import torch
from torch import nn

import qtool
from tests.algorithms.weight_rounding.test_layer_step import made, sqnr


def test_results_on_new_data_are_nearer() -> None:
    assert sqnr(made("4 bits", ("bias-correction",))) > sqnr(made("4 bits", ())) + 0.3


def test_a_bias_in_float_is_corrected_once() -> None:
    """Where the walk went on with the old one, the next layer took the same error off again."""
    torch.manual_seed(1)
    layers = [m for _ in range(6) for m in (nn.Linear(24, 24), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(24, 5)).eval()
    x = torch.rand(128, 24, generator=torch.Generator().manual_seed(0))
    how = {"mode": "weight-only-int4", "recover": ["bias-correction"]}
    calibration = qtool.calibrate(net, x.split(16), **how)
    model = qtool.convert(net, calibration)
    ((learned,),) = calibration.kept_samples.batches(128)
    with torch.no_grad():
        off = (model(learned) - net(learned)).mean(0).abs().max()
    assert float(off) < 1e-5


class Padded(nn.Module):
    """The mean over tokens that are not masked; what stands on the others is large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.inner(x))
        return (self.outer(h) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def padded(seed: int, count: int = 96) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    x, mask = torch.randn(count, 8, 16, generator=draw), torch.ones(count, 8)
    mask[:, 5:] = 0
    x[:, 5:] += 6 * torch.rand(count, 3, 16, generator=draw)  # a percentile clips some of them
    return list(zip(x.split(16), mask.split(16), strict=True))


def test_what_stands_on_masked_tokens_moves_no_bias() -> None:
    torch.manual_seed(0)
    graph = qtool.capture_model(Padded().eval(), padded(1)[0])
    noise = {}
    for recover in ((), ("bias-correction",)):
        model = qtool.quantize(graph, padded(1), observer="percentile:99", recover=recover)
        with torch.inference_mode():
            pairs = [(graph.graph.module(*b), model(*b)) for b in padded(2)]
        noise[recover] = sum(float((a - b).square().sum()) for a, b in pairs)
    assert noise["bias-correction",] < noise[()]
