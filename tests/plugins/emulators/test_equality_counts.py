"""What is equal, and how far the rest is off."""

from pathlib import Path

import numpy as np
import pytest

from qtool.core.sqnr import NO_SIGNAL_DB
from qtool.plugins.emulators.equality_counts import Tally, changed_predictions, tallies
from qtool.plugins.emulators.jobs import write_array


def tally(here: list[float], there: list[float], *types: type) -> Tally:
    found = Tally()
    one, other = types or (np.float32, np.float32)
    found.add(np.array(here, one), np.array(there, other))
    return found


def test_equal_values_have_no_noise() -> None:
    found = tally([1, np.nan, np.inf, -0.0], [1, np.nan, np.inf, 0.0])
    assert (found.total, found.identical, found.sqnr_db, found.equal) == (4, 4, None, True)


def test_decibels() -> None:
    found = tally([3, 4], [3, 4.5])
    assert found.identical == 1
    assert found.sqnr_db == pytest.approx(20)  # 25 / 0.25
    assert tally([0, 0], [1, 0]).sqnr_db == NO_SIGNAL_DB
    assert tally([1, 2], [np.nan, 2]).sqnr_db == NO_SIGNAL_DB


def test_the_last_bits_of_float32_are_near() -> None:
    one = np.float32(1000)
    assert tally([one, 0], [np.nextafter(one, np.float32(2000)), 0]).near
    assert tally([0, 0], [0, 0]).near
    assert not tally([one, 0], [one, 0.01]).near
    assert not tally([one, 0], [np.nan, 0]).near


def test_other_shapes_are_never_equal() -> None:
    found = Tally()
    found.add(np.zeros((2, 3)), np.zeros(3))
    assert (found.total, found.identical, found.equal) == (6, 0, False)


def test_codes_of_int8_are_those_of_uint8_less_128() -> None:
    assert tally([0, 128, 255], [-128, 0, 127], np.uint8, np.int8).equal
    assert tally([-128, 0, 1], [0, 128, 128], np.int8, np.uint8).identical == 2
    assert tally([0, 255], [255, 0], np.uint8, np.uint8).noise == 2 * 255**2


def folder(path: Path, *arrays: np.ndarray) -> Path:
    path.mkdir()
    for batch, array in enumerate(arrays):
        write_array(path, batch, 0, array)
    return path


def test_folders_are_compared_batch_by_batch(tmp_path: Path) -> None:
    one = folder(tmp_path / "a", np.zeros(3), np.zeros(2))
    other = folder(tmp_path / "b", np.zeros(3), np.ones(2))
    found = tallies(one, other, 2, [0])
    assert (found[0].total, found[0].identical) == (5, 3)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((4, 3), (4, 1)), ((4, 1), None), ((4,), None), ((4, 3, 1), None), ((2, 3), None)],
)
def test_classes_are_compared_where_there_are_any(
    shape: tuple[int, ...], wanted: tuple[int, int] | None, tmp_path: Path
) -> None:
    scores = np.zeros(shape, np.float32)
    other = scores.copy()
    other[(0,) + (-1,) * (len(shape) - 1)] = 1
    found = changed_predictions(
        folder(tmp_path / "a", scores), folder(tmp_path / "b", other), samples=[4]
    )
    assert found == wanted
