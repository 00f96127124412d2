"""Random inputs have sizes that a file takes, where it takes few."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.formats import open_file
from qtool.evaluation.bench import _random_batch

SIZES = (32, 64)


class Pyramid(nn.Module):
    """Takes sizes that are multiples of 16, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.down = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 16, stride=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.side(x)) + F.interpolate(F.relu(self.down(x)), scale_factor=16.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("sizes") / "pyramid.onnx"
    x, dynamic = torch.randn(16, 3, *SIZES), {"x": {0: "batch", 2: "high", 3: "wide"}}
    qtool.quantize(Pyramid().eval(), [x], dynamic=dynamic, accuracy="fast").export(path)
    return path


def test_a_file_records_sizes_of_its_dimensions(file: Path) -> None:
    known = open_file(file).known_sizes()
    assert {known[name] for name in ("high", "wide")} == set(SIZES)


def test_the_engine_is_compared_at_sizes_that_the_file_takes(file: Path) -> None:
    check = qtool.verify(file, samples=4, batch_size=4)
    assert check.passed
    assert not check.not_compared
    assert check.samples == 4


def test_files_are_timed_at_the_sizes_that_one_of_them_records(file: Path) -> None:
    (array,) = _random_batch([file], 2)
    assert array.shape == (2, 3, *SIZES)
