"""A run that ends while it calibrates goes on at the next block, to the same bytes."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qtool.blockwise import calibrate
from qtool.blockwise.checkpoint import Checkpoint, open_checkpoint
from qtool.calibration.calibration import Calibration
from qtool.core.errors import FileError
from tests.blockwise.test_any_cut import Convolutional, by_blocks, data_of, filled, large

__all__ = ["large"]

BLOCKS, AT = 5, 3  # the call that does not come back
BLOCK = 20_000

Convert = Callable[[Path], bytes]


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """Converts a network to a file in a folder that may have a checkpoint; returns its bytes."""
    place = tmp_path_factory.mktemp("net")
    save_file(filled(Convolutional).state_dict(), place / "model.safetensors")

    def converted(path: Path) -> bytes:
        how: dict[str, Any] = {"mode": "static", "accuracy": "fast", "memory": 0}
        how |= {"data": data_of(Convolutional), "model": Convolutional()}
        return by_blocks(place, path, BLOCK, **how)[1]

    return converted


@pytest.fixture(scope="module")
def expected(convert: Convert, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return convert(tmp_path_factory.mktemp("once") / "result" / "net.onnx")


@contextmanager
def ends_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, at: int = AT
) -> Iterator[None]:
    """End the process, as it were, at a call of a function: in front of its work or behind it."""
    calls, real = 0, getattr(owner, name)

    def ended(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = None if calls == at and not after else real(*given, **options)
        if calls == at:
            raise SystemExit
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, ended)
        with pytest.raises(SystemExit):
            yield


ENDS: dict[str, tuple[Any, str, bool, int]] = {
    "its batches have run": (calibrate, "collect_statistics", True, AT - 1),
    "its notes are stored": (Calibration, "save", False, AT - 1),
    "its statistics are stored": (Checkpoint, "save_ranges", True, AT),
    "all are calibrated": (Checkpoint, "add", False, BLOCKS),
}
"""Where a run ends -> owner and name of the function, see `ends_at`; blocks that are calibrated."""


@pytest.mark.parametrize(("owner", "name", "after", "done"), ENDS.values(), ids=ENDS)
def test_a_run_goes_on_behind_the_last_block_that_was_calibrated(
    owner: Any,
    name: str,
    after: bool,
    done: int,
    convert: Convert,
    expected: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "result" / "net.onnx"
    with ends_at(monkeypatch, owner, name, after, at=1 if done == BLOCKS else AT):
        convert(path)
    run, real = list[int](), calibrate._calibrate_block

    def counted(*given: Any) -> Any:
        run.append(given[1])
        return real(*given)

    monkeypatch.setattr(calibrate, "_calibrate_block", counted)
    assert convert(path) == expected
    assert run == list(range(done, BLOCKS))


def test_a_run_that_ends_in_each_block_gets_through(
    convert: Convert, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result" / "net.onnx"
    for _ in range(BLOCKS - 1):
        with ends_at(monkeypatch, calibrate, "_calibrate_block", after=False, at=2):
            convert(path)
    assert convert(path) == expected


def _swap(file: Path, other: Path) -> None:
    held = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(held)


SPOILED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "notes cut off": ("json", lambda file: file.write_bytes(file.read_bytes()[:9])),
    "another note": (
        "json",
        lambda file: file.write_text(
            file.read_text().replace('"notes": [', '"notes": ["of another", ')
        ),
    ),
    "cut off": ("safetensors", lambda file: file.write_bytes(file.read_bytes()[:-99])),
    "of another block": ("safetensors", lambda file: _swap(file, _first(file))),
    "all of another block": (
        "json",
        lambda file: [
            _swap(each, _first(each)) for each in (file, file.with_suffix(".safetensors"))
        ],
    ),
}
"""What is done to the statistics of a block -> the kind of file, and how."""


def _first(file: Path) -> Path:
    return file.with_stem("ranges-0000")


@pytest.fixture(scope="module")
def calibrated(convert: Convert, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended when all blocks were calibrated."""
    path = tmp_path_factory.mktemp("calibrated") / "result" / "net.onnx"
    with pytest.MonkeyPatch.context() as patch, ends_at(patch, Checkpoint, "add", False, at=1):
        convert(path)
    return path.parent


@pytest.mark.parametrize(("suffix", "spoil"), SPOILED.values(), ids=SPOILED)
def test_damaged_statistics_are_no_part_of_the_result(
    suffix: str,
    spoil: Callable[[Path], object],
    convert: Convert,
    calibrated: Path,
    tmp_path: Path,
) -> None:
    path = shutil.copytree(calibrated, tmp_path / "result") / "net.onnx"
    spoil(path.with_name("net.onnx.blocks") / f"ranges-0001.{suffix}")
    with pytest.raises(FileError, match=r"ranges-000[01].\w+ is damaged; delete .* again"):
        convert(path)
    assert not path.exists()


def test_inputs_that_no_block_reads_any_more(tmp_path: Path) -> None:
    """Ended when the statistics of a block were stored, and what it had read was not removed."""
    path, some = tmp_path / "net.onnx", {"x": torch.zeros(2)}
    with open_checkpoint(path, {}) as record:
        for values in (record.activations(0), *map(record.floats, range(1, 4))):
            values.save(0, some, {})
        for index in range(2):
            (record.folder / f"ranges-{index:04}.safetensors").write_bytes(b"")
    with open_checkpoint(path, {}) as record:
        assert record.calibrated == 2
        left = sorted(f.name for f in record.folder.iterdir() if f.is_dir())
        assert left == [record.floats(2).folder.name, record.activations(0).folder.name]
