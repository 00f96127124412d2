"""What stands on padding counts in no ratio."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.export import write_float
from qtool.evaluation.measure.accuracy import summarize
from qtool.plugins.search.judge import Judge
from qtool.verification.strip_padding import Padding
from tests.evaluation.measured import measure_outputs

MASK = np.array([[1, 1, 0], [1, 1, 1]])


def session(mask: Any, *outputs: Any) -> Any:
    inputs = [SimpleNamespace(name="ids", shape=mask)] if mask else []
    inputs += [SimpleNamespace(name="attention_mask", shape=mask)] if mask else []
    made = [SimpleNamespace(shape=shape) for shape in outputs]
    return SimpleNamespace(inputs=inputs, outputs=made)


@pytest.mark.parametrize(
    ("mask", "output", "axes"),
    [
        pytest.param(["n", "t"], ["n", "t", 4], (1,), id="states"),
        pytest.param(["n", "t"], ["n", "t"], (1,), id="one number a token"),
        pytest.param(["n", "t"], ["n", 2, "t", "t"], (2, 3), id="attention"),
        pytest.param(["n", "t"], ["n", 4], (), id="one vector a text"),
        pytest.param(["n", "t"], ["t", "n", 4], (), id="the samples elsewhere"),
        pytest.param(["n", 3], ["n", 3, 4], (1,), id="a fixed length"),
        pytest.param(["n", 3], ["n", 3], (), id="as many classes as tokens"),
        pytest.param(None, ["n", "t", 4], (), id="no mask"),
    ],
)
def test_which_axes_are_of_tokens(mask: Any, output: Any, axes: Any) -> None:
    assert Padding.of_session(session(mask, output)).axes == (axes,)


def test_zeros_stand_for_padding() -> None:
    padding = Padding.of_session(session(["n", "t"], ["n", "t", 4], ["n", 2, "t", "t"], ["n", 5]))
    given = [np.ones((2, 3, 4)), np.ones((2, 2, 3, 3)), np.ones((2, 5))]
    states, attention, whole = padding.strip([MASK, MASK], given)
    assert np.array_equal(states[:, :, 0], MASK)
    assert np.array_equal(attention[0, 1], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert whole.all()
    assert padding.strip([MASK, np.ones_like(MASK)], given)[0] is given[0]


class Reader(nn.Module):
    """Gives on padding something far larger, that quantization spoils."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 8), nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        away = (1 - attention_mask)[..., None] * 50.0
        return self.layer(self.table(input_ids) + away)


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(24).reshape(4, 6) % 9
    mask = torch.ones_like(ids)
    mask[:, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_it_counts_in_no_figure(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {0: "batch", 1: "length"}
    dynamic = {"input_ids": sizes, "attention_mask": sizes}
    captured = qtool.capture_model(Reader().eval(), batch(), dynamic)
    plain = write_float(captured.graph, tmp_path / "float.onnx")
    found = qtool.quantize(captured, [batch()], accuracy="fast")
    found.export(file := tmp_path / "int8.onnx")
    whole = {k: v[:, :4] for k, v in batch().items()}
    for figure in (
        lambda b: summarize(measure_outputs([plain, file], [b]), None).models[1].sqnr_db,
        lambda b: Judge(plain, [b]).score(file).sqnr_db,
    ):
        assert figure(batch()) == pytest.approx(figure(whole), abs=1e-6)
    assert found.fidelity.worst > 30
