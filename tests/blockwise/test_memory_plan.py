"""Plans of memory, shards and checkpoints."""

import json
import shutil
from pathlib import Path

import click
import pytest
import torch
from qtool.cli.value_types import Bytes
from safetensors.torch import save_file

import qtool
from qtool.algorithms.exclusive_layers import Layer, LayerCall
from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.weight_rounding.layer_solver import solve_layer
from qtool.blockwise.checkpoint import BlockChecks, BlockRecord, file_digest, open_checkpoint
from qtool.blockwise.layer_moments import (
    InputMoments,
    LayerMoments,
    Shard,
    solve_by_moments,
)
from qtool.blockwise.memory_plan import BLOCK, SMALLEST, WHOLE, block_size, whole_memory
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe
from qtool.verification import Coverage, Difference, Parity
from tests.cli.float_onnx import write_float_onnx


def test_tensors_that_no_block_reads_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended when the first block was recorded, and what it had read was not removed yet."""
    path, some = tmp_path / "net.onnx", {"x": torch.zeros(2)}
    with open_checkpoint(path, {}) as record, monkeypatch.context() as patch:
        others = record.floats(1), record.own_data, record.scratch
        for values in (*map(record.activations, range(4)), *others):
            values.save(0, some, {})
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        record.block(0).write_bytes(b"")
        digest = file_digest(record.block(0))
        parity = Parity(0, Difference(0.0, 0.0), None, None)
        checks = BlockChecks((), parity, None, Coverage("", ()))
        record.add(BlockRecord("a block", digest, {}, 0, (), (), checks))
    with open_checkpoint(path, {}) as record:
        assert len(record.finished) == 1
        left = [f.name for f in record.folder.iterdir() if f.is_dir()]
        assert left == [record.activations(1).folder.name]


WEIGHT = torch.tensor([[0.6, -1.4], [2.2, 0.1]])
PARAMS = QuantParams(INT8, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0)


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Shard:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("qtool.blockwise.layer_moments.invert_hessian", fails)
    graph = qtool.capture_model(torch.nn.Linear(2, 2).eval(), torch.ones(3, 2)).graph
    (node,) = [n for n in G.calls(graph.graph) if is_product(n)]
    moments = LayerMoments(node, InputMoments(1), WEIGHT[None], slice(0, 2))
    rows = moments.inputs.add(node, torch.ones(3, 2), 0)
    moments.add(rows, torch.ones(3, 2), 0)
    layer = Layer(node, WEIGHT, PARAMS, None, None)
    return Shard(LayerCall(layer, 2, {0: 0, 1: 1}, None), slice(0, 2), moments)


def plan() -> QuantPlan:
    return qtool.capture_model(torch.nn.Linear(2, 2).eval(), torch.ones(3, 2)).plan()


def test_inputs_too_much_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, torch.linalg.LinAlgError())  # type: ignore[attr-defined]
    solved = solve_by_moments([one], plan(), {"gptq": solve_layer})
    assert solved.weight is None
    assert solved.note.endswith("rounded to nearest, since the Hessian of its inputs is singular")


def test_another_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        solve_by_moments([one], plan(), {"gptq": solve_layer})


def test_the_memory_of_a_whole_model(tmp_path: Path) -> None:
    assert whole_memory(Path("package.module:factory")) == 0
    assert whole_memory(tmp_path) == 0
    half = {"a": torch.zeros(10, 3, dtype=torch.bfloat16), "b": torch.zeros(7)}
    save_file(half, tmp_path / "model.safetensors")
    assert whole_memory(tmp_path) == 0  # weights alone are no model
    (tmp_path / "config.json").write_text("{}")
    assert whole_memory(tmp_path) == WHOLE * 4 * 37
    write_float_onnx(tmp_path)
    assert whole_memory(tmp_path / "float.onnx") > 0


def test_blocks_are_smaller_in_less_memory(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    plain, trained = Recipe(), Recipe(accuracy="best")
    assert block_size(path, None, plain) == block_size(path, 3 << 30, plain) == BLOCK
    assert block_size(path, 1 << 30, plain) == 1 << 26
    assert block_size(path, 1000, plain) == SMALLEST
    assert block_size(path, None, trained) == block_size(path, 4 << 30, trained) == BLOCK
    assert block_size(path, 3 << 30, trained) == 1 << 27
    assert block_size(path, 3 << 30, Recipe(recover=("learned-scales",))) == 1 << 27
    (tmp_path / "net.onnx.blocks").mkdir()
    (tmp_path / "net.onnx.blocks/start.json").write_text(json.dumps({"block": "12345"}))
    assert block_size(path, 3 << 30, trained) == 12345


@pytest.mark.parametrize(
    ("text", "size"), [("3GiB", 3 << 30), ("512M", 512 << 20), ("1.5 kb", 1536)]
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["much", "-1", "0", "3 XiB", "9" * 40])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as 512MiB or 3GiB"):
        Bytes().convert(text, None, None)
