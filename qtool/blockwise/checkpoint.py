"""Checkpoints of a block-wise conversion, from which an interrupted command resumes.

They are in the folder `<result>.blocks` next to the result. A block is finished when its record is
there, which is written last; unfinished blocks are converted again and overwrite their files. So
the same command resumes after the last finished block and writes the same bytes. The same holds for
the calibration before it, whose statistics are a file for each block.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from qtool.backends.onnx.file_info import NodeInfo
from qtool.blockwise.activation_store import ActivationStore
from qtool.calibration.calibration import Calibration
from qtool.core.atomic import check_writable, fcntl, write_atomic
from qtool.core.errors import MALFORMED, CalibrationError, FileError
from qtool.core.records import from_json
from qtool.core.remedies import CallEdit, OtherFile, Setup
from qtool.verification import Coverage, Exactness, Parity
from qtool.verification.estimate import OutputEstimate

_START, _VALUES, _TAKEN, _FLOATS = "start.json", "values-", "taken", "floats-"
_LOCK, _RANGES = "lock", "ranges-"
_CHECK = "check"
"""Key of the checksum of a record."""


_PART = 1 << 20  # bytes that are read at once
_POOLED = OutputEstimate._fields.index("pooled_db") - 1  # without the name


@dataclass(frozen=True)
class BlockChecks:
    """Results of the checks of the file of a block, and the rows of its plan."""

    nodes: tuple[NodeInfo, ...]
    parity: Parity
    exactness: Exactness | None
    coverage: Coverage


@dataclass(frozen=True)
class BlockRecord:
    """The record of a finished block.

    Attributes:
        name: its first and last layer.
        digest: digest of its file.
        estimates: name of a result -> the figures of an `OutputEstimate` on the measured samples.
        samples: number of these samples.
        changes: records of the steps: name, number of places and reason.
        notes: sentences for the user.
        checks: results of the checks of its file.
        arrays: name of a step -> attributes of the constants that its change has, which the file of
            the model does not hold as codes.
    """

    name: str
    digest: str
    estimates: Mapping[str, tuple[float | None, ...]]
    samples: int
    changes: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]
    checks: BlockChecks = field(metadata={"json": False})
    arrays: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata={"json": False})

    @property
    def sqnr(self) -> Mapping[str, float | None]:
        """SQNR of its results over all measured samples, in dB; None for identical results."""
        return {name: figures[_POOLED] for name, figures in self.estimates.items()}

    @classmethod
    def of(cls, record: Mapping[str, Any], index: int) -> BlockRecord:
        """Return the record of block `index` from its JSON.

        Raises:
            ValueError: it is not as it was written.
        """
        return from_json(cls, _checked(record, index))

    def to_json(self, index: int) -> str:
        """Return the JSON, with a checksum of itself and the number of the block."""
        return _with_check(asdict(self), index)


class Checkpoint:
    """The checkpoint folder of one conversion.

    Args:
        identity: hash of model and options; a checkpoint of another one is refused.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder, self._identity = folder, dict(identity)
        self._begin()
        self.finished = list(self._read())
        self._check_blocks()
        self._clean()

    def _begin(self) -> None:
        start = self.folder / _START
        if not start.is_file():
            self._remove_all_but(_LOCK)  # of a checkpoint that was removed in part
            write_atomic(start, json.dumps(self._identity, indent=1).encode())
            return
        stored = _json(start)
        for what, value in self._identity.items():
            if stored.get(what) != value:
                raise self._of_other(f"another {what}", what)

    def _check_blocks(self) -> None:
        """Compare the files of finished blocks with their digests; their inputs are gone."""
        for index, record in enumerate(self.finished):
            with suppress(OSError):
                if file_digest(self.block(index)) == record.digest:
                    continue
            raise FileError(
                f"block {index} in {self.folder} is damaged: its weights are not those that "
                "were verified",
                OtherFile(f"delete {self.folder} to start again"),
            )

    def _clean(self) -> None:
        """Remove all stored tensors except the inputs of the next block, also of the calibration
        while it lasts."""
        read = {self.activations(len(self.finished)).folder}
        if not self.finished:
            read.add(self.floats(self.calibrated).folder)
        stored = (f for kind in (_VALUES, _TAKEN, _FLOATS) for f in self.folder.glob(f"{kind}*"))
        for unused in {*stored, self.scratch.folder} - read:
            shutil.rmtree(unused, ignore_errors=True)

    def _read(self) -> Iterator[BlockRecord]:
        index = 0
        while (file := self._file(index, "json")).is_file():
            try:
                yield BlockRecord.of(_json(file), index)
            except ValueError as error:
                raise _damaged(file) from error
            index += 1

    def check_identity(self, what: str, value: str) -> None:
        """Check a part of the identity that is known later, such as the data; store it if new."""
        self._identity[what] = value
        file = self.folder / f"{what}.txt"
        if not file.is_file():
            write_atomic(file, value.encode())
        elif file.read_text("utf-8", "replace") != value:
            raise self._of_other(f"other {what}", what)

    def _of_other(self, other: str, what: str) -> FileError:
        return FileError(
            f"{self.folder} is the checkpoint of a conversion with {other}",
            CallEdit(f"resume it with the same {what}"),
            OtherFile("delete it to start again"),
        )

    def activations(self, index: int) -> ActivationStore:
        """Return the store of a block's inputs."""
        return self._store(f"{_VALUES}{index:04}")

    def floats(self, index: int) -> ActivationStore:
        """Return the store of a block's inputs in the float network alone."""
        return self._store(f"{_FLOATS}{index:04}")

    @property
    def own_data(self) -> ActivationStore:
        """The data, until all samples are known."""
        return ActivationStore(self.folder / _TAKEN)

    @property
    def measured(self) -> ActivationStore:
        """Return the inputs of the model in the measured batches."""
        return self._store("measured")

    @property
    def scratch(self) -> ActivationStore:
        """Activations inside a block."""
        return ActivationStore(self.folder / "scratch")

    def block(self, index: int) -> Path:
        """Return the file with the weights and parameters that a block's steps changed."""
        return self._file(index, "safetensors")

    @property
    def checked(self) -> Path:
        """File of a block while it is checked."""
        return self.folder / "block.onnx"

    @property
    def calibrated(self) -> int:
        """Number of blocks, from the first, whose statistics are stored."""
        return next(i for i in count() if not self._ranges(i).is_file())

    @property
    def whole(self) -> Path:
        """File of the whole model, before it is moved with its data file."""
        return self.folder / "whole.onnx"

    def save_ranges(
        self, index: int, calibration: Calibration, scales: Mapping[str, torch.Tensor]
    ) -> None:
        """Store what the float network showed in a block. scales: of int8 caches, by attribute."""
        rest = {
            "notes": calibration.notes,
            "scales": {k: v.tolist() for k, v in scales.items()},
            "digest": hashlib.sha256(calibration.to_bytes()).hexdigest(),
        }
        file = self._ranges(index)
        write_atomic(file.with_suffix(".json"), _with_check(rest, index).encode())
        calibration.save(file)

    def load_ranges(self, index: int) -> tuple[Calibration, Mapping[str, torch.Tensor]]:
        """Return what `save_ranges` stored.

        Raises:
            FileError: a file is damaged.
        """
        file = self._ranges(index)
        rest = _json(file.with_suffix(".json"))
        try:
            if _checked(rest, index)["digest"] != file_digest(file):
                raise ValueError("its checksum differs")
            scales = {name: torch.tensor(values) for name, values in rest["scales"].items()}
            return replace(Calibration.load(file), notes=tuple(rest["notes"])), scales
        except (CalibrationError, OSError, *MALFORMED) as error:
            raise _damaged(file) from error

    def add(self, record: BlockRecord) -> None:
        """Add the record of the next block."""
        index = len(self.finished)
        write_atomic(self._file(index, "json"), record.to_json(index).encode())
        self.activations(index).remove()
        self.scratch.remove()
        self.finished.append(record)

    def remove(self) -> None:
        """Remove the folder; what an interruption leaves of it is no checkpoint."""
        (self.folder / _START).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_all_but(self, name: str) -> None:
        for each in self.folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != name:
                each.unlink()

    def _store(self, name: str) -> ActivationStore:
        """Return a store from which a run resumes: its values are those of this conversion."""
        return ActivationStore(self.folder / name, json.dumps(self._identity))

    def _file(self, index: int, kind: str) -> Path:
        return self.folder / f"block-{index:04}.{kind}"

    def _ranges(self, index: int) -> Path:
        """Return the file of a block's statistics, which is written once all batches have run."""
        return self.folder / f"{_RANGES}{index:04}.safetensors"


def file_digest(*paths: Path) -> str:
    """Hash the content of files, one behind the other.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while part := file.read(_PART):
                digest.update(part)
    return digest.hexdigest()


def _with_check(fields: Mapping[str, Any], index: int) -> str:
    """Return the JSON of a file of block `index`, with a checksum of both."""
    fields = json.loads(json.dumps(fields))
    return json.dumps({**fields, _CHECK: _hash(fields, index)})


def _checked(record: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the fields of the JSON of `_with_check`.

    Raises:
        ValueError: it is not as it was written.
    """
    fields = {k: v for k, v in record.items() if k != _CHECK}
    if record.get(_CHECK) != _hash(fields, index):
        raise ValueError("its checksum differs")
    return fields


def _hash(fields: Mapping[str, Any], index: int) -> str:
    return hashlib.sha256(f"{index} {json.dumps(fields)}".encode()).hexdigest()[:32]


def stored_identity(path: Path) -> Mapping[str, str] | None:
    """Return the identity of an interrupted conversion to `path`; None if there is none.

    Raises:
        FileError: the checkpoint is damaged.
    """
    start = _folder(path) / _START
    return _json(start) if start.is_file() else None


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.blocks")


@contextmanager
def open_checkpoint(path: Path, identity: Mapping[str, str]) -> Iterator[Checkpoint]:
    """Open the checkpoint of a conversion to `path`, locked against other commands.

    Raises:
        FileError: another process has it open, or it is of another model, data or options.
    """
    folder = _folder(path)
    with _locked(path, folder):
        try:
            yield Checkpoint(folder, identity)
        except OSError as error:
            raise FileError(
                f"cannot write {folder}: {error.strerror or error}; finished blocks are kept, "
                "and the same command resumes"
            ) from error


@contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    check_writable(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FileError(
                    f"another process uses {folder}", Setup("wait until it ends, or stop it")
                ) from error
        yield


def _json(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(file.read_text("utf-8"))
        if isinstance(content, dict):
            return content
    raise _damaged(file)


def _damaged(file: Path) -> FileError:
    return FileError(f"{file} is damaged", OtherFile(f"delete {file.parent} to start again"))
