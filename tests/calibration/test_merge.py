"""Calibrations of several processes: the bytes of one, however the data is dealt out."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import qtool
from qtool.api.conversion import calibrate, quantize
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.core.types import ObserverSpec
from qtool.frontends.captured_model import Captured, capture_model
from qtool.observers import OBSERVERS
from qtool.planning.plan import Probe
from qtool.planning.targets import DEFAULT
from tests.backends.onnx.export.networks import Residual
from tests.distributed.processes import run, values

SIZES = (16, 16, 7, 16, 1, 16, 16, 3)  # of batches
EXACT = sorted(OBSERVERS.keys() - {"moving_average"})


@functools.cache
def batches() -> list[torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return [torch.randn(n, 4, 8, 8) * (1 + i) for i, n in enumerate(SIZES)]


@functools.cache
def captured() -> Captured:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return capture_model(Residual().eval(), batches()[0])


def everything(data: list[torch.Tensor]) -> Calibration:
    """With every statistic, of whole tensors and by channel, and samples kept."""
    graph, _ = captured().for_target(DEFAULT)
    plan = captured().plan()
    tensors = [p.name for p in plan.observed()][:3]
    probes = [
        Probe(f"{tensor}.{name}.{axis}", tensor, ObserverSpec(name), axis)
        for tensor in tensors
        for name in EXACT
        for axis in (None, 1)
    ]
    return collect_statistics(graph, plan, probes, data, captured().fingerprint, keep=20)


def observed(rank: int, deal: list[list[int]]) -> bytes:
    with qtool.distributed.session("observe"):
        return everything([batches()[i] for i in deal[rank]]).to_bytes()


@pytest.fixture(scope="module")
def whole() -> bytes:
    return everything(batches()).to_bytes()


@pytest.mark.parametrize(
    "deal",
    [
        pytest.param([[0, 2, 4, 6], [1, 3, 5, 7]], id="two"),
        pytest.param([[7, 5, 2], [6], [0, 1, 3, 4]], id="three, uneven"),
        pytest.param([[5], [3], [6], [2], [], [7, 0], [4], [1]], id="eight, shuffled"),
        pytest.param([[], [7, 6, 5, 4, 3, 2, 1, 0]], id="one without data"),
    ],
)
def test_every_statistic_has_the_bytes_of_one_process(deal: list[list[int]], whole: bytes) -> None:
    found = values(run(len(deal), observed, deal))
    assert set(found) == {whole}


def with_a_sampler(rank: int) -> tuple[bytes, int]:
    images = torch.cat(batches())
    sampler = DistributedSampler(images, shuffle=True, seed=3)
    found = calibrate(captured(), DataLoader(images, 8, sampler=sampler))
    return found.to_bytes(), found.samples


def test_a_distributed_sampler() -> None:
    (one, count), (other, _) = values(run(2, with_a_sampler))
    assert one == other
    assert count == 92  # of 91: the sampler repeats one to give both as many


def quantized(rank: int, folder: Path) -> Any:
    made = quantize(captured(), iter(batches()[rank::2]), accuracy="balanced")
    made.export(folder / f"{rank}.onnx")
    return made.notes


def test_a_model_has_the_bytes_of_one_process(tmp_path: Path) -> None:
    values(run(2, quantized, tmp_path))
    quantize(captured(), batches(), accuracy="balanced").export(tmp_path / "alone.onnx")
    alone = (tmp_path / "alone.onnx").read_bytes()
    assert [(tmp_path / f"{r}.onnx").read_bytes() == alone for r in range(2)] == [True] * 2


def noted(rank: int, shares: list[list[int]]) -> tuple[str, ...]:
    notes = calibrate(captured(), [batches()[i] for i in shares[rank]]).notes
    return tuple(n for n in notes if not n.startswith("calibrated on"))  # few samples


def test_shares_that_are_odd_are_noted() -> None:
    found = values(run(3, noted, [[1, 2], [], [1, 0]]))
    assert found[0] == found[1] == found[2]
    assert found[0][:2] == (
        "rank 1 had no data",
        "ranks 0 and 2 began with the same batch; give each rank its own shard of the data",
    )


def ordered(rank: int) -> None:
    calibrate(captured(), [batches()[rank]], observer="moving_average")


def test_what_depends_on_the_order_is_refused_on_all() -> None:
    for ending in run(2, ordered):
        assert "observer 'moving_average' depends on the order of the data" in ending.error


def test_alone_the_order_may_count() -> None:
    assert calibrate(captured(), batches()[:2], observer="moving_average").samples == 32
