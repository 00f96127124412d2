"""Too few samples are noticed while they run through, and by nothing that is kept."""

from pathlib import Path

import torch
from torch import nn

import qtool
from qtool.calibration.calibration import Calibration


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)
    return nn.Sequential(*layers).eval()


def batches(count: int, growing: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 8, generator=generator) * growing**i for i in range(count)]


def growth(calibration: Calibration) -> tuple[str, ...]:
    """The notes, without the one on few samples."""
    return tuple(n for n in calibration.notes if not n.startswith("calibrated on"))


def test_ranges_that_still_grow_are_said_once_with_the_worst() -> None:
    found = qtool.calibrate(network(), batches(5, 1.5))
    (note,) = found.notes
    assert note.startswith(
        "calibration has not settled: the last 8 of 40 "
    )  # recorded at 8, 16, 32
    assert "use more samples" in note
    assert qtool.quantize(network(), batches(5, 1.5)).notes[0] == note


def test_the_last_batch_is_compared_with_what_was_before_it() -> None:
    (note,) = qtool.calibrate(network(), batches(4, 1.5)).notes
    assert note.startswith("calibration has not settled: the last 16 of 32 samples ")


def test_one_range_that_doubles_is_said() -> None:
    wide = [30 * x for x in batches(3, 1.0)]  # the layers behind are saturated
    wide[2][0, 0] = 300.0
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 4), nn.Sigmoid()).eval()
    (note,) = growth(qtool.calibrate(model, wide, observer="minmax"))
    assert "widened 1 of 2 ranges by over 100 % ('input' by a factor of " in note


def test_half_of_the_ranges_of_few_samples_that_grow_a_little_are_said() -> None:
    once = batches(1, 1.0)[0]
    few, many = (
        growth(qtool.calibrate(network(), [x, x, 1.15 * x], observer="minmax"))
        for x in (once[:4], once)
    )
    assert "by over 10 %" in few[0]
    assert many == ()


def test_data_that_is_alike_has_no_note() -> None:
    once = batches(1, 1.0)
    assert growth(qtool.calibrate(network(), once * 4)) == ()
    assert growth(qtool.calibrate(network(), once)) == ()  # one batch tells nothing
    shrinking = batches(5, 0.5)
    for observer in ("minmax", "percentile", "mse", "entropy", "gaussian", "moving_average"):
        assert qtool.calibrate(network(), shrinking, observer=observer).notes == ()


def test_a_note_is_of_one_run_and_in_no_file(tmp_path: Path) -> None:
    found = qtool.calibrate(network(), batches(5, 1.5))
    found.save(tmp_path / "one.calib")
    loaded = Calibration.load(tmp_path / "one.calib")
    assert loaded.notes == ()
    assert loaded.merge(found).notes == found.merge(loaded).notes == ()
    quiet = qtool.calibrate(network(), batches(5, 1.5)[::-1])
    assert quiet.notes == ()
    quiet.save(tmp_path / "other.calib")
    assert (tmp_path / "one.calib").read_bytes() == (tmp_path / "other.calib").read_bytes()
