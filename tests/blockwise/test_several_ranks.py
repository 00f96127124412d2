"""A model larger than memory in several processes: the bytes of one, after any end."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import qtool
from qtool.algorithms.learned_scales import training
from qtool.algorithms.weight_rounding import layer_solver
from qtool.blockwise import block_conversion, layer_moments, quantize
from qtool.blockwise.checkpoint import Checkpoint
from qtool.distributed import DataShard
from qtool.frontends.huggingface import meta_init
from tests.blockwise.test_by_blocks import Residual, content, made, pooled, samples
from tests.distributed.processes import run, values

KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # batches and options
    "rounded": (8, {}),
    "trained": (8, {"recover": ["learned-scales"]}),
    "static": (2, {"mode": "static", "accuracy": "fast"}),  # none for the third rank
}

SMALL: list[tuple[Any, str, int]] = [  # what is small here counts as large
    (meta_init, "MIN_META_ELEMENTS", 1000),
    (quantize, "SPLIT", 1),
    (layer_moments, "SHARD_ELEMENTS", 2000),
    (layer_moments, "COLUMNS", 40),  # of 48 and 96
    (layer_solver, "COLUMNS", 40),
    (training, "MAX_STEPS", 20),
]


def prepared() -> None:
    for owner, name, value in SMALL:
        setattr(owner, name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("weights")
    save_file(Residual().state_dict(), place / "model.safetensors")
    return place


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What one process writes."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for given in SMALL:
            patch.setattr(*given)
        for kind, (count, options) in KINDS.items():
            path = tmp_path_factory.mktemp(kind) / "net.onnx"
            result = made(folder, path, data=samples(count), **options)
            found[kind] = content(path)
            trained = {step for block in result.blocks for step, *_ in block.changes}
            assert ("learned-scales" in trained) == (kind == "trained")
    return found


def misfits(rank: int, folder: Path, out: Path) -> list[str]:
    """What is said of ranks that do not fit each other, one after the other."""
    place = out / str(rank)
    place.mkdir()
    torch.manual_seed(rank)
    save_file(Residual().state_dict(), place / "model.safetensors")
    said = []
    for source, path, options in (
        (folder, place / "net.onnx", {}),
        (place, out / "net.onnx", {}),
        (folder, out / "net.onnx", {"mode": "dynamic" if rank == 1 else "static"}),
        (folder, out / "net.onnx", {"data": []}),
    ):
        with pytest.raises(qtool.QtoolError) as caught:
            made(source, path, **{"data": DataShard(samples(), rank, 3), **options})
        said.append(str(caught.value))
    return said


def converted(rank: int, folder: Path, out: Path) -> dict[str, Any]:
    prepared()
    solved = 0
    real = layer_solver.best_solution

    def counted(*given: Any) -> Any:
        nonlocal solved
        solved += 1
        return real(*given)

    layer_solver.best_solution = counted
    found = {}
    for kind, (count, options) in KINDS.items():
        place = out / kind
        place.mkdir(exist_ok=True)
        result = made(
            folder, place / "net.onnx", data=DataShard(samples(count), rank, 3), **options
        )
        found[kind] = pooled(result), [b.notes for b in result.blocks]
    return {"told": found, "solved": solved, "misfits": misfits(rank, folder, out)}


def test_the_bytes_are_those_of_one_process(
    folder: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    found = values(run(3, converted, folder, tmp_path))
    for kind, wanted in alone.items():
        assert content(tmp_path / kind / "net.onnx") == wanted
    assert found[0]["told"] == found[1]["told"] == found[2]["told"]
    assert "had no data" not in str(found[0]["told"])
    assert min(one["solved"] for one in found) > 2
    for apart, model, options, nothing in (one["misfits"] for one in found):
        assert " of 3 does not find " in apart
        assert "write the result to a folder that all ranks can access" in apart
        assert "rank 1 of 3 has a different model than rank 0" in model
        assert "rank 1 of 3 has different options than rank 0" in options
        assert "the calibration data is empty" in nothing


def late(rank: int, folder: Path, out: Path) -> str:
    """Convert, while the last rank looks last which blocks are calibrated."""
    prepared()
    if rank == 2:
        looked = Checkpoint.calibrated.fget

        def calibrated(checkpoint: Checkpoint) -> int:
            time.sleep(1)
            count: int = looked(checkpoint)
            return count

        Checkpoint.calibrated = property(calibrated)
    data = DataShard(samples(), rank, 3)
    return str(pooled(made(folder, out / "net.onnx", data=data, **KINDS["static"][1])))


def test_rank_0_decides_which_blocks_are_calibrated(folder: Path, tmp_path: Path) -> None:
    assert len(set(values(run(3, late, folder, tmp_path)))) == 1


def dies(rank: int, folder: Path, path: Path) -> None:
    """The second one, in the second block."""
    prepared()
    real, calls = block_conversion.run_block, 0

    def walk(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 3:  # each block runs twice
            os._exit(3)
        return real(*given)

    block_conversion.run_block = walk
    made(folder, path, data=DataShard(samples(), rank, 2), **KINDS["trained"][1])


def test_an_end_of_one_is_that_of_all_and_any_number_goes_on(
    folder: Path, alone: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "net.onnx"
    zero, one = run(2, dies, folder, path)
    assert one.code == 3
    assert zero.error.endswith("rank 1 of 2 is gone: no sign of life for 50 s")
    assert [f.name for f in tmp_path.iterdir()] == ["net.onnx.blocks"]
    assert len(list(tmp_path.glob("*.blocks/block-*.json"))) == 1
    for given in SMALL:
        monkeypatch.setattr(*given)
    made(folder, path, **KINDS["trained"][1])
    assert content(path) == alone["trained"]
