"""Figures of several processes: those of one, in the order of the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.api.conversion import quantize
from qtool.api.evaluation import evaluate
from qtool.distributed import DataShard, session
from qtool.evaluation.evaluate import gather_labels, gather_statistics
from qtool.evaluation.evaluation import Evaluation
from qtool.metrics.sample_statistics import SampleStatistics
from tests.backends.onnx.export.networks import Residual
from tests.distributed.processes import run, values

SIZES = (4, 2, 3, 1, 5)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 4, 8, 8, generator=generator) for n in SIZES]


def measured(batch: int) -> SampleStatistics:
    """Of one batch: numbers that tell where they are from."""
    n = SIZES[batch]
    place = 10.0 * batch + np.arange(n)
    classes = np.stack([place, -place])[:, :, None].astype(np.int32)
    pair = np.stack([0 * place, place])
    signals, noises = place[:, None], pair[:, :, None]
    return SampleStatistics(
        classes,
        signals,
        noises,
        (n,),
        pair,
        place,
        pair,
        pair,
        pair,
        classes,
        pair,
        3,
        "classes",
        ("output",),
    )


def joined(parts: list[SampleStatistics]) -> SampleStatistics | None:
    if not parts:
        return None
    return SampleStatistics.joined(parts)


def dealt(rank: int, size: int, whole: bool) -> Any:
    mine = list(range(len(SIZES)))[rank::size]
    own = joined([measured(b) for b in mine])
    every = np.concatenate([10 * b + np.arange(n) for b, n in enumerate(SIZES)])
    share = every[:0] if own is None else own.signal.astype(int)
    labels = every if whole else share
    with session("evaluate") as ranks:
        return gather_labels(ranks, own, labels), gather_statistics(ranks, own)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_everything_is_in_the_order_of_the_data(size: int, whole: bool) -> None:
    known = joined([measured(b) for b in range(len(SIZES))])
    (labels, found), *others = values(run(size, dealt, size, whole))
    for name in ("classes", "signal", "noise"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name))
    assert found.sizes == SIZES
    for theirs, nothing in others:
        assert nothing is None
        np.testing.assert_array_equal(theirs, known.signal)
    np.testing.assert_array_equal(labels, known.signal)


def without_labels(rank: int) -> None:
    with session("evaluate") as ranks:
        gather_labels(ranks, measured(rank), None if rank else np.zeros(4, int))


def test_labels_of_some_alone() -> None:
    for ending in run(2, without_labels):
        assert (
            ending.error == "DataError: rank 1 has no labels; pass labels on all ranks or on none"
        )


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Residual().eval()


def evaluated(rank: int, file: Path, labels: np.ndarray) -> Evaluation:
    return evaluate(file, network(), DataShard(batches(), rank, 2), labels, seconds=0)


def test_an_evaluation_is_that_of_one_process(tmp_path: Path) -> None:
    file, labels = tmp_path / "int8.onnx", np.arange(sum(SIZES)) % 5
    quantize(network(), batches(), accuracy="fast").export(file)
    known = evaluate(file, network(), batches(), labels, seconds=0)
    one, other = values(run(2, evaluated, file, labels))
    assert one == other  # the figures of rank 0, times among them
    assert one.latency[0].batch == known.latency[0].batch
    assert one.accuracy.metrics == known.accuracy.metrics
    pairs = [result.accuracy.models[1] for result in (one, known)]
    assert len({(each.agreement, each.sqnr_db) for each in pairs}) == 1
