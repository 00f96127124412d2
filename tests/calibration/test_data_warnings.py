"""Warnings on data that is not what the network was trained on, and none on data that is."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

from qtool.calibration.data_warnings import DataWarnings
from qtool.core.random_inputs import Input

SAMPLES = 64


def warnings(**inputs: torch.Tensor) -> list[str]:
    """The warnings on a batch of each half of the samples."""
    ports = [
        Input(name, str(t.dtype).removeprefix("torch."), ("n", *t.shape[1:]))
        for name, t in inputs.items()
    ]
    collected = DataWarnings(ports)
    for batch in zip(*(t.chunk(2) for t in inputs.values()), strict=True):
        collected.add(batch)
    return list(collected.warnings(SAMPLES))


def drawn(*sizes: int) -> torch.Tensor:
    """Values of 0 to 1, of which some are 1, as of an image."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(SAMPLES, *sizes, generator=generator).mul(1.01).clamp(max=1)


IMAGE = drawn(3, 8, 8)
ROUNDED_OFF = {
    "bytes": IMAGE.to(torch.uint8),
    "channels last": IMAGE.to(torch.uint8).permute(0, 2, 3, 1),
    "gray": IMAGE[:, :1].to(torch.int8),
    "of -1 to 1": (IMAGE * 2.02 - 1.01).clamp(-1, 1).to(torch.int32),
    "bytes of -1 to 1": (IMAGE * 2.02 - 1.01).clamp(-1, 1).to(torch.int8).view(torch.uint8),
    "zeros": torch.zeros(SAMPLES, 3, 8, 8, dtype=torch.uint8),
}


@pytest.mark.parametrize("image", ROUNDED_OFF.values(), ids=ROUNDED_OFF)
def test_an_image_whose_fractions_are_lost(image: torch.Tensor) -> None:
    own = [w for w in warnings(x=image, other=drawn(4)) if "their fractions are lost" in w]
    assert len(own) == 1
    assert "% of the values of input 'x' are 0" in own[0]


def marked(channels: int, value: int = 1) -> torch.Tensor:
    """Images of zeros but for two pixels each."""
    image = torch.zeros(SAMPLES, channels, 16, 16, dtype=torch.uint8)
    image[:, :, 2, 3:5] = (drawn(channels, 2) * value).to(torch.uint8)
    return image


IDS = (drawn(32) * 99).long() * (torch.arange(32) < 3)
INTEGERS: dict[str, dict[str, torch.Tensor]] = {
    "bytes": {"x": (IMAGE * 255).to(torch.uint8)},
    "digits on black": {"x": marked(1, 200)},
    "digits, then black": {
        "x": torch.cat([marked(1, 200)[:1].repeat(2, 1, 1, 1), *[marked(1)] * 9])[:SAMPLES]
    },
    "token ids and their mask": {"ids": IDS, "mask": (IDS > 0).long()},
    "an image and its mask": {"x": IMAGE, "mask": marked(1)},
    "bytes and their mask": {"x": (IMAGE * 255).to(torch.uint8), "mask": marked(1)},
    "one of four classes": {"x": one_hot((drawn(8, 8) * 3.9).long(), 4).to(torch.uint8)},
    "one of many classes": {"x": one_hot((drawn(20) * 90).long(), 99)},
    "planes of a board": {"x": marked(12)},
    "a table of counts": {"x": (drawn(300) - 0.98).clamp(min=0).mul(99).long()},
    "black and white": {"x": (drawn(3, 8, 8) > 0.97).to(torch.uint8) * 255},
}


@pytest.mark.parametrize("inputs", INTEGERS.values(), ids=INTEGERS)
def test_other_integers(inputs: dict[str, torch.Tensor]) -> None:
    assert not [w for w in warnings(**inputs) if "fractions" in w]
