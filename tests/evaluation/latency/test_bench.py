"""Latency of several files, as text and as JSON. No test looks at how long anything takes."""

import numpy as np
import pytest

import qtool
from qtool.core.errors import DataError
from qtool.evaluation.bench import Bench
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.machine import Machine
from tests.evaluation.onnx_files import linear_file

HERE = Machine("a processor", 2, 8.0, "Linux", (), {})


def made(low, high):
    spreads = (Spread(2.0, 1.5, 2.5), Spread(1.0, 0.9, 1.1))
    ratios = (Ratio(1.0, 1.0, 1.0, 1.0, 1.0), Ratio(2.0, low, high, 1.8, 2.2))
    timing = Timing(4, 1, 30, 1.0, spreads, ratios)
    return Bench(("folder/a.onnx", "b.onnx"), HERE, (timing,), 0.01)


def test_the_summary_names_the_fastest_file():
    (row,) = made(1.99, 2.01).summary().rows
    assert row[1] == "b.onnx is fastest: 1.00 ms, 2.00x as fast as a.onnx (2.00 ms)"
    (row,) = made(0.9, 2.1).summary().rows
    assert row[1] == "no difference between a.onnx and b.onnx (2.00 ms)"


@pytest.mark.parametrize(("low", "high", "precise"), [(1.985, 2.015, True), (1.97, 2.03, False)])
def test_precise_is_within_the_precision(low, high, precise):
    found = made(low, high)
    assert found.precise == precise
    assert found.to_json()["precise"] == precise
    assert found.to_json()["timings"][0]["ratios"][1]["median"] == 2.0


@pytest.fixture
def files(tmp_path):
    return [linear_file(tmp_path / f"{n}.onnx", np.eye(3)) for n in "ab"]


def test_every_pair_is_timed(files):
    seen = []

    def bars(title, total):
        seen.append((title, total))
        return lambda items: items

    found = qtool.bench(
        files, batch_sizes=(2, 4), threads=(1, 2), seconds=0.01, precision=1.0, bars=bars
    )
    pairs = [(t.batch, t.threads) for t in found.timings]
    assert pairs == [(2, 1), (4, 1), (2, 2), (4, 2)]
    assert found.files == tuple(map(str, files))
    assert seen == [("timing", 4)]


def test_a_fixed_batch_is_timed_by_default(files, tmp_path):
    fixed = linear_file(tmp_path / "fixed.onnx", np.eye(3), size=2)
    found = qtool.bench([files[0], fixed], seconds=0.01)
    assert [t.batch for t in found.timings] == [2]
    assert found.notes == ("fixed.onnx takes batches of 2 alone",)
    assert found.summary().notes == found.notes
    assert [t.batch for t in qtool.bench(files, seconds=0.01).timings] == [1, 32]
    with pytest.raises(DataError, match=r"fixed\.onnx does not accept batch size 4"):
        qtool.bench([files[0], fixed], batch_sizes=(2, 4), seconds=0.01)
