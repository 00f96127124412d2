"""Images of 0 to 1, and what the first BatchNorm was trained on."""

import pytest
import torch
from torch import nn

from qtool.api.conversion import calibrate

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(64, 3, 8, 8, generator=GENERATOR)


def trained(scale: float, shift: float, first: nn.Module | None = None) -> nn.Module:
    """Return a network that was trained on images of 0 to 1 after `x * scale + shift`."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 16, 3) if first is None else first
    net = nn.Sequential(layer, nn.BatchNorm2d(16 if first is None else 3, momentum=None), nn.ReLU())
    with torch.no_grad():
        net.train()(IMAGES * scale + shift)
    return net.eval()


def notes(net: nn.Module, x: torch.Tensor = IMAGES) -> list[str]:
    return [note for note in calibrate(net, list(x.split(16))).notes if "normalisation" in note]


@pytest.mark.parametrize(("scale", "shift"), [(4.4, -2.1), (2.0, -1.0)])
def test_images_of_0_to_1_for_normalised_ones_are_named(scale: float, shift: float) -> None:
    (text,) = notes(trained(scale, shift))
    assert f"vary {1 / scale:.2g} times as much as those that the BatchNorm" in text
    assert notes(trained(scale, shift), IMAGES * scale + shift) == []


@pytest.mark.parametrize(
    "net",
    [
        trained(1.0, 0.0),
        trained(1.0, 0.0, nn.Identity()),
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).eval(),
    ],
    ids=["trained on 0 to 1", "a BatchNorm of the images", "not trained"],
)
def test_other_networks_have_no_note(net: nn.Module) -> None:
    assert notes(net) == []


def test_a_batch_norm_of_the_images_shows_it_too() -> None:
    assert len(notes(trained(4.4, -2.1, nn.Identity()))) == 1
