"""Sizes that the data shows: those that differ between batches, and one number of samples."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import DataError

Batches = Iterable[Any]


class Tokens(nn.Module):
    """Scores of texts, whose mask is indexed by sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.scores = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(ids.shape[0])[:, None]
        kept = mask[rows, torch.arange(ids.shape[1])]
        return self.scores((self.table(ids) * kept[..., None]).mean(1))


def texts(*lengths: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"ids": torch.randint(0, 50, (8, n), generator=generator), "mask": torch.ones(8, n)}
        for n in lengths
    ]


class Once:
    """Data that a class reads anew, as a DataLoader does."""

    def __iter__(self) -> Iterator[Any]:
        return iter(texts(9, 12, 7, 12))


def shapes(model: nn.Module, data: Batches) -> list[tuple[int | str, ...]]:
    return [i.shape for i in qtool.calibrate(model.eval(), data, accuracy="fast").inputs]


@pytest.mark.parametrize("data", [texts(9, 12, 7, 12), Once()], ids=["list", "read anew"])
def test_lengths_that_differ_are_dynamic(data: Batches, tmp_path: Path) -> None:
    """Each batch of texts is padded to its own longest one."""
    model = Tokens().eval()
    qtool.quantize(model, data, accuracy="fast").export(tmp_path / "a.onnx")
    inputs = onnx.load(tmp_path / "a.onnx").graph.input
    named = [[d.dim_param for d in i.type.tensor_type.shape.dim] for i in inputs]
    assert named == [["batch", "ids_1"]] * 2
    assert "16 samples" in str(qtool.evaluate(tmp_path / "a.onnx", model, texts(5, 20)))


def test_a_search_takes_lengths_that_differ() -> None:
    goals = qtool.TuneGoals(min_sqnr=10)
    result = qtool.tune(Tokens().eval(), texts(9, 12), texts(8, 11), goals=goals)
    assert result.best.score.sqnr_db > 10


def test_sides_of_square_images_have_names_of_their_own() -> None:
    images = [torch.randn(4, 3, n, n) for n in (8, 12, 10)]
    model = nn.Conv2d(3, 4, 3)
    assert shapes(model, images) == [("batch", 3, "input_2", "input_3")]


def test_equal_lengths_stay_fixed() -> None:
    assert shapes(Tokens(), texts(9, 9)) == [("batch", 9)] * 2


def test_what_is_read_once_names_the_argument() -> None:
    """Its next item may be the same memory, so it is not read ahead."""
    with pytest.raises(DataError, match="if the model takes other sizes, give dynamic=") as error:
        shapes(Tokens(), iter(texts(9, 12)))
    dynamic = {n: {0: "batch", 1: f"{n}_1"} for n in ("ids", "mask")}
    assert f"dynamic={ {'ids': dynamic['ids']} }" in str(error.value)
    calibration = qtool.calibrate(Tokens().eval(), iter(texts(9, 12)), dynamic=dynamic)
    assert calibration.samples == 16


def test_a_length_that_the_model_fixes_is_noted() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(DataError, match=r"has shape \[4, 5\], the model takes"):
        shapes(model, [torch.randn(4, 12), torch.randn(4, 5)])


def pair(combine: Callable[[torch.Tensor, torch.Tensor], Any]) -> nn.Module:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return combine(self.layer(x), y)

    return Pair().eval()


@pytest.mark.parametrize(
    ("combine", "second"),
    [
        (lambda x, y: x + y[torch.arange(len(x))], "batch"),
        (lambda x, y: x @ y.T, "y_batch"),
        (lambda x, y: (x, y * 2), "y_batch"),
    ],
    ids=["indexed", "similarities", "apart"],
)
def test_inputs_that_need_equal_numbers_have_one_batch(combine: Any, second: str) -> None:
    captured = qtool.capture_model(pair(combine), (torch.randn(6, 4), torch.randn(6, 4)))
    assert [i.shape[0] for i in captured.graph.inputs] == ["batch", second]


def test_other_numbers_in_the_example_stay_apart() -> None:
    model = pair(lambda x, y: x + y[torch.arange(len(x))])
    captured = qtool.capture_model(model, (torch.randn(6, 4), torch.randn(9, 4)))
    assert [i.shape[0] for i in captured.graph.inputs] == ["batch", "y_batch"]
