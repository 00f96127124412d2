"""Activations and data on disk."""

import gc
import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.checkpoint import Checkpoint
from qtool.blockwise.stored_data import StoredBatch, store_data
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.data.sample_roles import Role
from qtool.core.errors import FileError

KINDS = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]


def tensor(kind: torch.dtype, *sizes: int) -> torch.Tensor:
    return (torch.arange(torch.Size(sizes).numel()) % 7).reshape(sizes).to(kind)


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    values = ActivationStore(tmp_path / "values")
    exact = {str(kind): tensor(kind, 3, 5) for kind in KINDS}
    exact |= {"number": torch.tensor(2.5), "none": torch.zeros(0, 4), "\u00e4 b": torch.ones(1)}
    turned = torch.rand(4, 6).t()[1:3]  # a part of something larger, turned
    coded = {**exact, "number": torch.tensor(3.5), "part": turned}
    values.save(0, exact, coded)
    found, quantized = values.load(0)
    for given, got in ((exact, found), (coded, quantized)):
        assert got.keys() == given.keys()
        for name, each in given.items():
            assert got[name].dtype == each.dtype
            assert got[name].shape == each.shape
            assert torch.equal(got[name], each), name
    found["number"].add_(1)  # in memory alone
    assert values.load(0)[0]["number"] == 2.5
    values.save(1, found, quantized)  # what was mapped can be written
    assert values.load(1)[0]["number"] == 3.5


@pytest.mark.parametrize("spoil", [b"", b"x", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]"])
def test_a_file_that_is_none_is_one_sentence(spoil: bytes, tmp_path: Path) -> None:
    values = ActivationStore(tmp_path / "values")
    values.save(0, {"x": torch.ones(3)}, {})
    (file,) = (tmp_path / "values").iterdir()
    file.write_bytes(spoil)
    with pytest.raises(FileError, match="cannot be read"):
        values.load(0)
    file.unlink()
    with pytest.raises(FileError, match="cannot be read"):
        values.load(0)


def _flip(data: bytes) -> bytes:
    return data[:-2] + bytes([data[-2] ^ 1, data[-1]])


EDITS: dict[str, Callable[[Path], object]] = {
    "one bit": lambda folder: _edit(folder / "000001.safetensors", _flip),
    "sizes": lambda folder: _edit(
        folder / "000001.safetensors", lambda data: data.replace(b"[2,3]", b"[3,2]")
    ),
    "a size": lambda folder: _edit(
        folder / "000001.safetensors", lambda data: data.replace(b"[2,3]", b"[2,9]")
    ),
    "another batch": lambda folder: shutil.copy(
        folder / "000000.safetensors", folder / "000001.safetensors"
    ),
    "another block": lambda folder: shutil.copy(
        folder.with_name("other") / "000001.safetensors", folder / "000001.safetensors"
    ),
    "another conversion": lambda folder: ActivationStore(folder, "other data").save(1, EXACT, {}),
}
EXACT = {"x": torch.ones(2, 3)}


def _edit(file: Path, edit: Callable[[bytes], bytes]) -> None:
    before = file.read_bytes()
    file.write_bytes(edit(before))
    assert file.read_bytes() != before


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_values_of_another_place_or_conversion_are_refused(
    edit: Callable[[Path], object], tmp_path: Path
) -> None:
    values = ActivationStore(tmp_path / "values", "a conversion")
    for store in (values, ActivationStore(tmp_path / "other", "a conversion")):
        for index in range(2):
            store.save(index, EXACT, {})
    values.load(1)
    edit(values.folder)
    with pytest.raises(FileError, match=r"000001.safetensors cannot be read .*(checksum|invalid)"):
        values.load(1)
    assert torch.equal(values.load(0)[0]["x"], EXACT["x"])


def test_reading_leaves_nothing(tmp_path: Path) -> None:
    values = ActivationStore(tmp_path / "values")
    values.save(0, {str(i): torch.ones(8) for i in range(50)}, {})
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(3):
            for _ in range(20):
                values.load(0)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] - sizes[1] < 20 * 50 * 8  # of each tensor not even a word


def stored(
    model: nn.Module, data: Iterable[torch.Tensor], folder: Path
) -> tuple[list[StoredBatch], list[torch.Tensor]]:
    """The batches of some data, and their tensors."""
    data = list(data)
    graph = qtool.capture_model(model.eval(), data[0]).graph
    checkpoint = Checkpoint(folder, {})
    found = store_data(graph, (graph.bind(Batch((x,))) for x in data), checkpoint, ["x"])
    return found, [checkpoint.activations(0).load(batch.number)[0]["x"] for batch in found]


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Joined(nn.Module):
    """Its batches cannot be cut into samples: their number is fixed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(12) * 2


def drawn(count: int = 6, size: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return list(torch.randn(count, size, 3))


@pytest.mark.parametrize(("count", "size"), [(6, 4), (20, 4), (40, 5)])
def test_samples_have_the_roles_that_they_have_in_memory(
    count: int, size: int, tmp_path: Path
) -> None:
    data, kept = drawn(count, size), CalibrationSamples(400)
    for batch in data:
        kept.update([batch], split=True)
    batches, tensors = stored(Twice(), data, tmp_path)
    parts = {
        Role.FIT: kept.batches(400),
        Role.JUDGE: kept.batches(400, holdout=True),
        Role.ESTIMATE: kept.estimates(400),
    }
    for role, expected in parts.items():
        rows = [x for b, x in zip(batches, tensors, strict=True) if b.role is role]
        found = torch.cat(rows).tolist() if rows else []
        assert sorted(found) == sorted(
            torch.cat([t for (t,) in expected]).tolist() if expected else []
        )
    held_out = bool(parts[Role.ESTIMATE])
    assert held_out is (count * size >= 48)
    assert all(b.measured is (b.role is Role.ESTIMATE or not held_out) for b in batches)
    assert [batch.number for batch in batches] == list(range(len(batches)))


def test_batches_that_cannot_be_cut_have_one_role(tmp_path: Path) -> None:
    batches, _ = stored(Joined(), drawn(60), tmp_path)
    assert [batch.size for batch in batches] == [4] * 60
    assert {batch.role for batch in batches} == set(Role)
