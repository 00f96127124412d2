"""A history of runs: one line of JSON per run, appended to a file that several runs may share."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.core.atomic import check_writable, fcntl, resolve
from qtool.core.errors import MALFORMED, FileError, VerificationError
from qtool.core.paths import is_special_file
from qtool.core.remedies import OtherFile
from qtool.core.versions import own_version
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.provenance import provenance

if TYPE_CHECKING:
    from qtool.evaluation.evaluation import Evaluation

SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
        time: UTC, ISO 8601.
        command: the command.
        file: path of the quantized file.
        sha256: digest of the file.
        model: fingerprint of the float model; empty if the file does not state it.
        qtool: version.
        cpu: model name of the processor.
        size_bytes: size of the file and its external data.
        verdict: verdict in words; empty for commands without one.
        speedup: float time / its time; null if it was not timed.
        sqnr_db: SQNR of the outputs; null if there is no error.
        metrics: name -> value of the quantized file.
    """

    time: str
    command: str
    file: str
    sha256: str
    model: str
    qtool: str
    cpu: str
    size_bytes: int
    verdict: str = ""
    speedup: float | None = None
    sqnr_db: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def make_run(command: str, file: Path, path: str, size_bytes: int, **results: Any) -> Run:
    """Return the entry of a run that ends now.

    Args:
        command: its name.
        file: the quantized file.
        path: the path of the file to record.
        size_bytes: size of the file and its external data.
        results: verdict, speedup, sqnr_db and metrics, see `Run`.

    A file that is no model, or a damaged one, has neither fingerprint nor digest.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    model = sha256 = ""
    with suppress(FileError, VerificationError):
        made = provenance(file)
        model = "" if made.origin is None else made.origin.model
        sha256 = next(iter(made.sha256.values()))
    cpu = this_machine().cpu
    return Run(now, command, path, sha256, model, own_version(), cpu, size_bytes, **results)


def run_of(command: str, evaluation: Evaluation, file: Path, path: str) -> Run:
    """Return the entry of an evaluation of one model.

    Args:
        command, file, path: as for `make_run`.
        evaluation: what was measured of it.
    """
    facts, ratio = evaluation.models[-1], evaluation.speedup
    return make_run(
        *(command, file, path, facts.size_bytes),
        verdict="" if facts.verdict is None else facts.verdict.headline,
        speedup=None if ratio is None else ratio.median,
        sqnr_db=evaluation.accuracy.models[-1].sqnr_db,
        metrics={m.name: m.values[-1] for m in evaluation.accuracy.metrics},
    )


def append_run(history: Path, run: Run) -> None:
    """Append a run in one write, so that lines of runs at the same time do not mix.

    Raises:
        FileError: the file cannot be written.
    """
    values = {"schema": SCHEMA, **asdict(run)}
    line = json.dumps({name: _finite(value) for name, value in values.items()}, allow_nan=False)
    check_writable(history)
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(resolve(history), flags, 0o666), "r+b", buffering=0) as file:
            with suppress(OSError, AttributeError):  # a file system, or a system, without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            whole = not end or _last_byte(file, end) == b"\n"
            file.write(("" if whole else "\n").encode() + line.encode() + b"\n")
    except OSError as error:
        raise FileError(f"cannot write {history}: {error.strerror or error}") from error


def read_history(history: Path) -> list[Run]:
    """Return the runs in a history, oldest first; none without the file.

    Raises:
        FileError: it cannot be read, or a line is no run.
    """
    if is_special_file(history):
        raise FileError(f"{history}: cannot read the history: not a regular file")
    try:
        lines = history.read_text("utf-8").splitlines() if history.exists() else []
    except (OSError, ValueError) as error:
        raise FileError(f"{history}: cannot read the history ({error})") from error
    return [_read_line(history, number, line) for number, line in enumerate(lines, 1)]


def _read_line(history: Path, number: int, line: str) -> Run:
    try:
        return _parsed(json.loads(line))
    except MALFORMED as error:
        raise FileError(
            f"{history}: line {number} is no run ({error})",
            OtherFile("remove it"),
            OtherFile("name another file"),
        ) from error


def _parsed(values: dict[str, Any]) -> Run:
    if values.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    run = Run(**values)
    numbers = [run.size_bytes, run.speedup, run.sqnr_db, *dict(run.metrics).values()]
    if not all(value is None or isinstance(value, int | float) for value in numbers):
        raise TypeError("a number is text")
    return run


def _last_byte(file: Any, end: int) -> bytes:
    file.seek(end - 1)
    last: bytes = file.read(1)
    return last


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
