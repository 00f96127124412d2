"""Archives that would fill the memory are refused before they are unpacked."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qtool.core import downloads
from qtool.core.downloads import archive_damage, archive_expansion_error
from qtool.core.errors import CaptureError, DataError
from qtool.core.numpy_files import read_arrays
from qtool.frontends.state_dicts import load_weights
from qtool.frontends.torch.exported_program import load_program


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_ALWAYS_ALLOWED", 2**20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Zeros, a thousand times as large unpacked."""
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((2**20,), np.float32))
    assert 500 * path.stat().st_size < 2**22
    return path


def test_what_unpacks_to_much_more_is_refused(file: Path) -> None:
    assert archive_expansion_error(file) is not None
    with pytest.raises(DataError, match=r"would unpack from .* to 4,194,4"):
        read_arrays(file)
    for suffix in (".pt", ".pt2"):
        other = file.rename(file.with_suffix(suffix))
        with pytest.raises(CaptureError, match="would unpack"):
            load_program(other) if suffix == ".pt2" else load_weights(nn.Linear(1, 1), other)
        file = other


def test_what_is_as_large_as_it_is_unpacked_is_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=2**19).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=noise)
    assert read_arrays(tmp_path / "a.npz")["x"].shape == noise.shape
    torch.save({"weight": torch.zeros(2**19)}, tmp_path / "a.pt")
    assert archive_expansion_error(tmp_path / "a.pt") is None


def test_what_is_no_archive_is_somebody_elses_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\\x03\\x04 and no more")
    assert archive_expansion_error(tmp_path / "a.npz") is None
    assert zipfile.is_zipfile(tmp_path / "a.npz") is False


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_flipped_bit_is_seen_by_the_checksum(suffix: str, tmp_path: Path) -> None:
    """torch.load does not compare it."""
    path, model = tmp_path / f"weights{suffix}", nn.Linear(64, 64)
    torch.save(model.state_dict(), path)
    assert archive_damage(path) is None
    data = bytearray(path.read_bytes())
    data[data.index(model.weight.detach().numpy().tobytes()) + 100] ^= 1
    path.write_bytes(data)
    read = load_program if suffix == ".pt2" else lambda file: load_weights(model, file)
    with pytest.raises(CaptureError, match=r"its member .*/data/0 is damaged; copy the file again"):
        read(path)
