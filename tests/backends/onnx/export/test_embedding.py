"""Embeddings as int8 tables: rows are looked up as codes and dequantized then."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

import qtool
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Execution
from tests.needs import HAS_VNNI

ROWS, WIDTH = 700, 96  # just above what is worth it
CODES = "table.weight.codes"


class Words(nn.Module):
    """A language model in small: a large table, a small one, and scores from the large one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kinds = nn.Embedding(ROWS, WIDTH), nn.Embedding(4, WIDTH)
        self.mix, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, ROWS, bias=False)
        self.scores.weight = self.table.weight
        with torch.no_grad():
            self.table.weight.mul_(torch.logspace(-2, 2, ROWS)[:, None])  # rows of all sizes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.kinds(ids % 4)
        return self.scores(self.norm(self.mix(self.norm(x))))


def ids(seed: int, samples: int = 6) -> torch.Tensor:
    return torch.randint(0, ROWS, (samples, 9), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Words().eval(), ids(0), {"ids": {0: "batch", 1: "length"}})


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only"])
def test_the_table_is_int8_and_stored_once(captured: Captured, mode: str, tmp_path: Path) -> None:
    model = qtool.quantize(captured, [ids(1)], mode=mode, accuracy="fast")
    found = model.export(tmp_path / "m.onnx")
    assert found.exactness.exact or not HAS_VNNI  # floats of layers with stored weights
    decisions = {d.node: d for d in model.plan.nodes}
    assert decisions["table"].execution is Execution.WEIGHTS
    assert decisions["kinds"].reason == "its table is too small to gain from codes"
    stored = {i.name: i for i in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert stored[CODES].data_type == TensorProto.INT8
    tables = [i for i in stored.values() if np.prod(i.dims) >= ROWS * WIDTH]
    if mode == "static":
        assert len(tables) == 1, "the scores read the same codes"
    assert not [i for i in tables if i.data_type == TensorProto.FLOAT]


def test_every_row_has_a_scale_of_its_own(captured: Captured) -> None:
    file = qtool.quantize(captured, [ids(1)], mode="weight-only", accuracy="fast").to_onnx()
    stored = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    found = (p for p in captured.graph.module.parameters() if p.shape == (ROWS, WIDTH))
    table = next(found).detach().numpy()
    rows = stored[CODES].astype(np.float32) * stored["table.weight.scale"][:, None]
    largest = np.abs(table).max(1, keepdims=True)
    assert (np.abs(rows - table) <= largest / 254 * 1.001).all()


def test_a_wrong_row_is_seen(captured: Captured, tmp_path: Path) -> None:
    model = qtool.quantize(captured, [ids(1)], mode="weight-only", accuracy="fast")
    file = model.to_onnx()
    (codes,) = (i for i in file.graph.initializer if i.name == CODES)
    codes.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(codes)[::-1].copy(), CODES))
    onnx.save(file, tmp_path / "m.onnx")
    assert model.verify(tmp_path / "m.onnx").parity.as_written.worst > 10


def test_a_file_brings_its_table_back(captured: Captured, tmp_path: Path) -> None:
    model = qtool.quantize(captured, [ids(1)], accuracy="fast")
    model.export(tmp_path / "m.onnx")
    found = restore(tmp_path / "m.onnx", captured, model.sample)
    with torch.no_grad():
        assert torch.equal(found(ids(2)), model(ids(2)))


def test_a_recipe_or_another_target_keeps_it_in_float(captured: Captured) -> None:
    kept = captured.plan(recipe=[{"op": "embedding", "as": "float"}])
    assert "recipe" in {d.node: d.reason for d in kept.nodes}["table"]
    elsewhere = {d.node: d for d in captured.plan("openvino").nodes}["table"]
    assert (elsewhere.execution, elsewhere.reason) == (
        Execution.FLOAT,
        "no integer kernel on openvino",
    )


def only(kind: str, file: onnx.ModelProto) -> onnx.NodeProto:
    (node,) = (n for n in file.graph.node if n.op_type == kind)
    return node


@pytest.mark.parametrize(
    ("rule", "bits"),
    [({}, 8), ({"weights": "int4", "block": 16}, 4), ({"weights": "uint8"}, 8)],
    ids=["8 bits where none are asked for", "4 bits", "with zero points"],
)
def test_a_table_and_the_scores_from_it_read_the_same_codes(
    captured: Captured, rule: dict[str, str], bits: int, tmp_path: Path
) -> None:
    recipe = [{"select": "scores", **rule}] if rule else None
    model = qtool.quantize(
        captured, [ids(1)], mode="weight-only-int4", recipe=recipe, accuracy="fast"
    )
    path = tmp_path / "m.onnx"
    found = model.export(path)
    assert found.passed
    assert found.exactness.exact
    file = onnx.load(path)
    lookup = only("GatherBlockQuantized", file)
    (scores,) = (n for n in file.graph.node if n.name == "scores")
    assert scores.op_type == "MatMulNBits"
    assert lookup.input[0] == scores.input[1] == "scores.weight.codes"
    stored = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    assert stored["scores.weight.codes"].nbytes == ROWS * WIDTH * bits // 8
    assert not any(a.size >= ROWS * WIDTH for n, a in stored.items() if n != lookup.input[0])
    decisions = {d.node: d for d in model.plan.nodes}
    assert decisions["table"].reason == "rows are read from the codes of scores"
    again = restore(path, captured, qtool.core.data.Batch((ids(2),)))
    with torch.no_grad():
        assert torch.equal(again(ids(2)), model(ids(2)))


def test_a_table_left_in_float_is_not_shared(captured: Captured) -> None:
    recipe = [{"select": "table", "as": "float"}]
    plan = captured.plan(recipe=qtool.planning.recipe.Recipe.of(recipe, "weight-only-int4"))
    found = {d.node: d for d in plan.nodes}
    assert found["table"].execution is Execution.FLOAT
    assert found["scores"].reason.startswith("4-bit weights")
