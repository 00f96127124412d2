"""Batches from files, and files that are no data."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from qtool.core.data.array_files import ArrayFiles
from qtool.core.errors import DataError
from qtool.core.numpy_files import read_arrays, read_labels

X = np.arange(30, dtype=np.float32).reshape(10, 3)


def joined(batches: list[torch.Tensor]) -> list[list[float]]:
    return torch.cat(batches).tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same ten samples as one .npy, one .npz, and as a folder of three files."""
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    (tmp_path / "parts").mkdir()
    np.save(tmp_path / "parts" / "c.npy", X[7:])
    np.save(tmp_path / "parts" / "a.npy", X[:3])
    np.savez_compressed(tmp_path / "parts" / "b.npz", x=X[3:7])
    (tmp_path / "parts" / "readme.txt").write_text("not data")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("x.npy", [4, 4, 2]), ("x.npz", [4, 4, 2]), ("parts", [3, 4, 3])],
    ids=["npy", "npz", "a folder, in order of names"],
)
def test_forms(folder: Path, name: str, sizes: list[int]) -> None:
    files = ArrayFiles(folder / name, batch_size=4)
    found = list(files)
    assert [len(b) for b in found] == sizes
    assert len(files) == len(sizes)
    assert joined(found) == X.tolist()
    assert joined(list(files)) == X.tolist(), "read again from the start"


def test_batches_are_the_users_to_change(folder: Path) -> None:
    for batch in ArrayFiles(folder / "x.npy"):
        batch += 1
    assert np.load(folder / "x.npy").tolist() == X.tolist()


def test_several_arrays_come_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=X, b=X[:, :1], labels=np.arange(10))
    files = ArrayFiles(tmp_path / "x.npz", batch_size=8, exclude=("labels",))
    first, second = files
    assert {k: list(v.shape) for k, v in first.items()} == {"a": [8, 3], "b": [8, 1]}
    assert {k: list(v.shape) for k, v in second.items()} == {"a": [2, 3], "b": [2, 1]}
    alone = ArrayFiles(tmp_path / "x.npz", exclude=("labels", "b"))
    assert joined(list(alone)) == X.tolist()
    assert read_labels(tmp_path / "x.npz", "labels").tolist() == list(range(10))


def _damage(path: Path) -> bytes:
    """Compressed data with wrong bytes inside; the table of contents at the end is whole."""
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(500, 4)))
    content = bytearray(path.read_bytes())
    content[2000:2100] = b"\xff" * 100
    return bytes(content)


def _huge(path: Path) -> bytes:
    """A header that promises more than any memory holds."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000,), }"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00v\x00" + header.ljust(0x75) + b"\n")
    return path.read_bytes()


def _saved(save: Callable[..., None], *arrays: object, **named: object) -> Callable[[Path], bytes]:
    def content(path: Path) -> bytes:
        save(path, *arrays, **named)
        return path.read_bytes()

    return content


OBJECTS = np.array([None, {}], dtype=object)


WHAT_IS_NO_DATA = {
    "empty npy": ("x.npy", lambda _: b"", "is empty"),
    "empty npz": ("x.npz", lambda _: b"", "is empty"),
    "foreign": ("x.npy", lambda _: b"\0text", "cannot be read as arrays"),
    "truncated npz": ("x.npz", lambda _: b"PK\x03\x04", "cannot be read"),
    "truncated npy": ("x.npy", lambda p: _saved(np.save, X)(p)[:-9], "cannot be read"),
    "damaged npz": ("x.npz", _damage, "cannot be read as arrays"),
    "a promise too large": ("x.npz", _huge, "cannot be read as arrays"),
    "pickled npy": ("x.npy", _saved(np.save, OBJECTS), "cannot be read"),
    "pickled npz": ("x.npz", _saved(np.savez, x=OBJECTS), "holds Python objects"),
    "no arrays": ("x.npz", _saved(np.savez), "holds no array of inputs"),
    "labels only": ("x.npz", _saved(np.savez, labels=X), "holds no array of inputs"),
    "unequal lengths": (
        "x.npz",
        _saved(np.savez, a=X, b=X[1:]),
        r"different numbers of samples: \{'a': 10, 'b': 9\}",
    ),
    "a number": ("x.npz", _saved(np.savez, a=3.0), "'a' is a single number"),
    "text array": ("x.npy", _saved(np.save, np.array(["a"])), "of type <U1"),
    "csv": ("x.csv", lambda _: b"1,2", r"are \.npy or \.npz, or a folder"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy leaves the
# file of a broken .npz open, which the garbage collector then reports
@pytest.mark.parametrize(
    ("name", "content", "message"), WHAT_IS_NO_DATA.values(), ids=WHAT_IS_NO_DATA
)
def test_what_is_no_data(
    tmp_path: Path, name: str, content: Callable[[Path], bytes], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content(path))
    with pytest.raises(DataError, match=message) as raised:
        list(ArrayFiles(path, exclude=("labels",)))
    assert name in str(raised.value) or "of type" in str(raised.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        list(ArrayFiles(tmp_path / "none"))
    with pytest.raises(DataError, match=r"holds no \.npy or \.npz file"):
        len(ArrayFiles(tmp_path))


@pytest.mark.parametrize("raised", [RuntimeError, NotImplementedError, OverflowError, SyntaxError])
def test_whatever_a_damaged_file_makes_numpy_raise(
    folder: Path, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise raised("encrypted")

    monkeypatch.setattr(np, "load", load)
    with pytest.raises(DataError, match=r"cannot be read as arrays: .*encrypted"):
        read_arrays(folder / "x.npz")


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("notes.txt", "no array")
    with pytest.raises(DataError, match=r"its member 'notes\.txt' is none"):
        read_arrays(tmp_path / "x.npz")


def test_a_pipe_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(DataError, match=r"holds no \.npy"):
        ArrayFiles(tmp_path).files()
    with pytest.raises(DataError, match="no such file or folder"):
        ArrayFiles(tmp_path / "x.npy").files()
