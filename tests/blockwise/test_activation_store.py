"""What lies on the disk between blocks: tensors come back as they were, and leave nothing."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import torch

from qtool.blockwise.activation_store import ActivationStore
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
