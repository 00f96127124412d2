"""How far a conversion by blocks is, on the disk: what lets it go on after any end.

Beside the result stands the folder `<result>.blocks`. A block is done when its record is there,
which is the last thing that is written of it; what a block wrote before is written again, over the
same places. So the same command goes on behind the last whole block, to the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from qtool.blockwise.activation_store import ActivationStore
from qtool.core.atomic import check_writable, fcntl, write_atomic
from qtool.core.errors import FileError
from qtool.distributed import Ranks

_START, _DATA, _VALUES, _TAKEN = "start.json", "weights.data", "values-", "taken-"


@dataclass(frozen=True)
class BlockRecord:
    """What is known of a block that is done.

    name: its first and last layer. end: of its weights in the data. sqnr: of what it gives, in dB,
    by name; None where nothing differs. rounded: layers. notes: sentences. nodes: rows of its plan.
    """

    name: str
    end: int
    digest: str
    sqnr: Mapping[str, float | None]
    rounded: int
    notes: tuple[str, ...]
    nodes: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> BlockRecord:
        """From JSON; raises TypeError."""
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in found.items()
        }
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Checkpoint:
    """The folder of one conversion.

    said: what it is made of: model, data, choices. ranks: all of them see the folder.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str], ranks: Ranks) -> None:
        self.folder, self.ranks = folder, ranks
        self._said = dict(identity)
        if not ranks.rank:
            self._begin()
            self._clean()
        ranks.all_gather("")
        if not (folder / _START).is_file():
            raise FileError(
                f"rank {ranks.rank} of {ranks.size} does not find {folder} that rank 0 has begun; "
                "give a place for the result that all of them see"
            )
        self.done = list(self._read())

    def _begin(self) -> None:
        start = self.folder / _START
        if not start.is_file():
            write_atomic(start, json.dumps(self._said, indent=1).encode())
            return
        known = _json(start)
        for what, value in self._said.items():
            if known.get(what) != value:
                raise FileError(
                    f"{self.folder} holds work that was begun with another {what}; give what it "
                    "was begun with to go on, or delete it to begin again"
                )

    def _clean(self) -> None:
        """Removes all tensors but those that the next block reads: what a block wrote that did not
        come to its end, and what the one before it had read."""
        read = self.activations(len(list(self._read()))).folder
        held = (f for kind in (_VALUES, _TAKEN) for f in self.folder.glob(f"{kind}*"))
        for left in {*held, self.scratch.folder} - {read}:
            shutil.rmtree(left, ignore_errors=True)

    def _read(self) -> Iterator[BlockRecord]:
        index = 0
        while (file := self._file(index, "json")).is_file():
            try:
                yield BlockRecord.of(_json(file))
            except TypeError as error:
                raise FileError(
                    f"{file} is damaged; delete {self.folder} to begin again"
                ) from error
            index += 1

    def check_identity(self, what: str, value: str) -> None:
        """That the rest of the input, which is known later, is the one it was begun with."""
        self._said[what] = value
        if self.ranks.rank:
            return
        file = self.folder / f"{what}.txt"
        if not file.is_file():
            write_atomic(file, value.encode())
        elif file.read_text() != value:
            raise FileError(
                f"{self.folder} holds work that was begun with other {what}; give those to go on, "
                "or delete it to begin again"
            )

    @property
    def data(self) -> Path:
        """The weights of all blocks that are done, and behind them anything."""
        return self.folder / _DATA

    @property
    def end(self) -> int:
        """Where the weights of the next block go."""
        return self.done[-1].end if self.done else 0

    def activations(self, index: int) -> ActivationStore:
        """What a block reads."""
        return ActivationStore(self.folder / f"{_VALUES}{index:04}")

    @property
    def own_data(self) -> ActivationStore:
        """The data of this rank, as long as nobody knows how much the others have."""
        return ActivationStore(self.folder / f"{_TAKEN}{self.ranks.rank}")

    @property
    def scratch(self) -> ActivationStore:
        return ActivationStore(self.folder / "scratch")

    def model(self, index: int) -> Path:
        """A block as ONNX, whose weights are in the data."""
        return self._file(index, "onnx")

    def add(self, done: BlockRecord | None) -> None:
        """A block is done: from here on it is not done again. done: of the first rank."""
        index, ranks = len(self.done), self.ranks
        if not ranks.rank:
            assert done is not None
            write_atomic(self._file(index, "json"), done.to_json().encode())
            shutil.rmtree(self.activations(index).folder, ignore_errors=True)
            shutil.rmtree(self.scratch.folder, ignore_errors=True)
        told = ranks.broadcast(None if done is None else done.to_json().encode())
        self.done.append(done or BlockRecord.of(json.loads(told)))

    def block_models(self) -> list[onnx.ModelProto]:
        return [onnx.load(self.model(i), load_external_data=False) for i in range(len(self.done))]

    @property
    def digest(self) -> str:
        """Of all weights, and where each is."""
        return hashlib.sha256("".join(d.digest for d in self.done).encode()).hexdigest()[:16]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, index: int, kind: str) -> Path:
        return self.folder / f"block-{index:04}.{kind}"


@contextmanager
def open_checkpoint(path: Path, said: Mapping[str, str], ranks: Ranks) -> Iterator[Checkpoint]:
    """The record of a conversion to `path`, for the processes of one command at a time.

    Raises:
        FileError: another one is at it; it was begun with another model, other data or choices.
    """
    folder = path.with_name(f"{path.name}.blocks")
    with nullcontext() if ranks.rank else _locked(path, folder):
        try:
            yield Checkpoint(folder, said, ranks)
        except OSError as error:
            raise FileError(
                f"cannot write {folder}: {error.strerror or error}; what is done is kept, and the "
                "same command goes on there"
            ) from error


@contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    check_writable(path)
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FileError(
                    f"another process works in {folder}; wait for it, or end it"
                ) from error
        yield


def _json(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    raise FileError(f"{file} is damaged; delete {file.parent} to begin again")
