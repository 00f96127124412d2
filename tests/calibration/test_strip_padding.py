"""Padding that a mask tells of takes no part in calibration."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.calibration.strip_padding import strip_padding
from qtool.core.data import Batch
from qtool.core.errors import DataError

BOTH = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
ROWS = [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]]


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.layer, self.beside = nn.Linear(4, 3), nn.Linear(4, 3)
        self.table.weight.data[0] = 100.0  # what stands on padding is far larger

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        return (self.layer(x) + self.beside(x)).relu() * attention_mask[..., None]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    mask = torch.tensor(rows)
    ids = torch.arange(1, 1 + mask.numel()).reshape(mask.shape) % 9 + 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def parts(rows: list[list[int]], dynamic: Any = BOTH) -> list[Batch]:
    torch.manual_seed(0)
    batch = padded(rows)
    graph = qtool.capture_model(Reader().eval(), padded(ROWS), dynamic).graph
    return list(strip_padding(graph, graph.bind(Batch((), batch))))


def test_texts_of_equal_lengths_are_together() -> None:
    found = parts(ROWS)
    ids = padded(ROWS)["input_ids"]
    assert all(part.kwargs["attention_mask"][:, -1].all() for part in found)
    assert [part.size for part in found] == [2, 1, 2]
    short, long, late = (part.kwargs["input_ids"] for part in found)
    assert torch.equal(short, ids[[0, 3], :2])
    assert torch.equal(long, ids[[1]])
    assert torch.equal(late, ids[[2, 4], 2:]), "no shorter than torch.export takes"


@pytest.mark.parametrize("rows", [[[1, 1, 1]] * 2, [[1, 0, 1], [1, 1, 0]], [[0, 0, 0], [1, 1, 0]]])
def test_what_is_left_as_it_is(rows: list[list[int]]) -> None:
    """Nothing padded; gaps; a row of nothing."""
    (found,) = parts(rows)
    assert torch.equal(found.kwargs["input_ids"], padded(rows)["input_ids"])


def test_one_length_alone_stays() -> None:
    (found,) = parts(ROWS, {name: {0: "batch"} for name in BOTH})
    assert found.size == len(ROWS)


def test_ranges_are_of_tokens_alone() -> None:
    torch.manual_seed(0)
    model, seen = Reader().eval(), []
    cut = [{k: t[i : i + 1, a:b] for k, t in padded(ROWS).items()} for i, a, b in
           [(0, 0, 2), (3, 0, 2), (1, 0, 4), (2, 2, 4), (4, 2, 4)]]  # fmt: skip
    for data in ([padded(ROWS)], cut):
        captured = qtool.capture_model(model, padded(ROWS), BOTH)
        seen.append(qtool.calibrate(captured, data))
    assert seen[0].ranges() == seen[1].ranges()
    assert seen[0].samples == seen[1].samples == len(ROWS)


@pytest.mark.parametrize("most", [1, 12, 1 << 16])
def test_parts_are_counted_as_one_by_one(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("qtool.calibration.collect.BUFFERED", most)
    captured = qtool.capture_model(Reader().eval(), padded(ROWS), BOTH)
    found = qtool.calibrate(captured, [padded(ROWS), padded(ROWS)])
    seen = qtool.calibrate(captured, 2 * [p.kwargs for p in parts(ROWS)])
    for name, statistic in found.statistics.items():
        for key, value in statistic.state().items():
            assert np.array_equal(value, seen.statistics[name].state()[key]), name


class OnlyTokens(Reader):
    """Its result at padding is 0 / 0, as that of a softmax of a row of -inf."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask[..., None].float()
        return self.layer(self.table(input_ids)) * mask / mask


def test_nan_at_padding_is_no_result_of_the_model(tmp_path: Path) -> None:
    made = qtool.quantize(
        OnlyTokens().eval(), [padded(ROWS[:4] * 10)], dynamic=BOTH, accuracy="fast"
    )
    result = made.export(tmp_path / "tokens.onnx", timing=0)
    assert result.passed
    assert all(check.sqnr_db > 20 for check in result.other_sizes)
    with pytest.raises(DataError, match="output 'output' of the float model is NaN"):
        qtool.quantize(
            OnlyTokens().eval(), [padded([[1, 0, 1], [1, 1, 0]])], dynamic=BOTH, accuracy="fast"
        )
