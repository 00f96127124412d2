"""What changes no integer: exact, but where a test says what float permits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import qtool

IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def codes_of(
    model: nn.Module, batches: list[object], observer: str = "minmax", accuracy: str | None = None
) -> list[torch.Tensor]:
    """The outputs of the integer engine on the first batch."""
    quantized = qtool.quantize(model, batches, observer=observer, accuracy=accuracy)
    first = batches[0] if isinstance(batches[0], tuple) else (batches[0],)
    return list(quantized.integer()(*first))


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Small(nn.Module):
    """Two layers, of which the last gives float: nothing behind the sums is calibrated."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, hidden, 3), nn.Linear(hidden * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)).flatten(1))


def small() -> Small:
    torch.manual_seed(3)
    return Small().eval()


def test_permuted_channels() -> None:
    model, other = small(), small()
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    other.first.weight.data, other.first.bias.data = (
        model.first.weight[order],
        model.first.bias[order],
    )
    columns = model.last.weight.detach().view(4, 6, 36)[:, order]
    other.last.weight.data = columns.reshape(4, -1)
    for observer in ("minmax", "percentile"):
        assert same(codes_of(model, [IMAGES], observer), codes_of(other, [IMAGES], observer))


def test_a_channel_of_zeros() -> None:
    """With min-max: a percentile counts the zeros, too."""
    model, other = small(), Small(7).eval()
    other.first.weight.data = torch.cat([model.first.weight.data, torch.zeros(1, 3, 3, 3)])
    other.first.bias.data = torch.cat([model.first.bias.data, torch.zeros(1)])
    small_weights = torch.full((4, 36), 0.01)  # larger ones would widen the scale of a row
    other.last.weight.data = torch.cat([model.last.weight.data, small_weights], 1)
    other.last.bias.data = model.last.bias.data
    assert same(codes_of(model, [IMAGES]), codes_of(other, [IMAGES]))


@pytest.mark.parametrize("factor", [2.0**-6, 2.0**20])
def test_a_factor_of_two_goes_through(factor: float) -> None:
    model, other = small(), small()
    for layer in (other.first, other.last):
        layer.bias.data *= factor
    for observer in ("percentile", "mse"):  # other data: recovery would keep other samples of it
        plain = codes_of(model, [IMAGES], observer, "fast")
        scaled = codes_of(other, [IMAGES * factor], observer, "fast")
        assert same([x * factor for x in plain], scaled)


def test_a_factor_of_two_in_weights() -> None:
    model, other = small(), small()
    other.first.weight.data *= 8
    other.first.bias.data *= 8
    other.last.weight.data /= 8
    assert same(codes_of(model, [IMAGES]), codes_of(other, [IMAGES]))


def with_norm(exact: bool) -> nn.Sequential:
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(6, eps=0.0 if exact else 1e-5)
    norm.running_mean.zero_() if exact else norm.running_mean.normal_()
    norm.running_var.fill_(1.0) if exact else norm.running_var.uniform_(0.5, 2)
    powers = 2.0 ** torch.arange(-2, 4)
    norm.weight.data = powers if exact else torch.randn(6)
    norm.bias.data.normal_()
    layers = (nn.Conv2d(3, 6, 3, bias=not exact), norm, nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))
    return nn.Sequential(*layers).eval()


def folded(model: nn.Sequential) -> nn.Sequential:
    conv = fuse_conv_bn_eval(copy.deepcopy(model[0]), copy.deepcopy(model[1]))
    return nn.Sequential(conv, *model[2:]).eval()


def test_a_norm_folded_beforehand() -> None:
    model = with_norm(exact=True)
    assert same(codes_of(model, [IMAGES]), codes_of(folded(model), [IMAGES]))


def test_a_norm_folded_beforehand_as_float_permits() -> None:
    """The weights are those of another order of products: a code may fall to the other side."""
    model = with_norm(exact=False)
    (a,), (b,) = codes_of(model, [IMAGES]), codes_of(folded(model), [IMAGES])
    assert float((a - b).abs().max()) < 0.01 * float(a.max() - a.min())
