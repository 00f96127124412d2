"""Timing of files on the user's data or on random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from qtool.backends.formats import open_file, runtime_title
from qtool.core.errors import DataError, OptionError
from qtool.core.limits import THREADS, Range
from qtool.core.number_texts import milliseconds, quantity, table, times
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import model_files
from qtool.core.progress import Bars, no_bars
from qtool.core.records import JsonRecord
from qtool.core.remedies import Argument, CallEdit, DataEdit
from qtool.core.summary import Summarized, Summary
from qtool.core.types import Array
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import STEP, Timing
from qtool.evaluation.machine import Machine, this_machine
from qtool.evaluation.model_inputs import check_same_inputs, fixed_batch, random_inputs
from qtool.evaluation.options import ReportOptions

PHASE = "phase"
COLUMNS = (
    "file",
    PHASE,
    "batch",
    "thr.",
    "median",
    "80 % of runs",
    "ratio",
    "95 % interval",
    "rounds",
)


@dataclass(frozen=True)
class Bench(Summarized, JsonRecord):
    """Latency of several files.

    Attributes:
        files: paths in the order of every timing; ratios are first file / each.
        timings: one for each batch size and number of threads.
        precision: requested half-width of the ratios' intervals, relative to the median.
        runtime: where the files ran, with its version; "" for that of their format.
        notes: sentences on what was timed.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("precise",)

    files: tuple[str, ...]
    machine: Machine
    timings: tuple[Timing, ...]
    precision: float
    runtime: str = ""
    notes: tuple[str, ...] = ()

    @property
    def precise(self) -> bool:
        """True if every ratio reached the requested precision."""
        return len(self.files) < 2 or all(
            r.width <= self.precision for t in self.timings for r in t.ratios
        )

    def summary(self, title: str = "") -> Summary:
        """Return the fastest file of each timing."""
        rows = tuple((timing.what, self._fastest(timing)) for timing in self.timings)
        count = quantity(len(self.files), "file")
        place = f"in {self.runtime}, on" if self.runtime else "on"
        return Summary(title or count, f"{place} {self.machine.cpu}", rows, self.notes)

    def _fastest(self, timing: Timing) -> str:
        names = [Path(file).name for file in self.files]
        times_ = [milliseconds(spread.median) for spread in timing.models]
        if len(names) == 1:
            return times_[0]
        order = sorted(range(len(names)), key=lambda i: -timing.ratios[i].median)
        best, second = order[:2]
        other = timing.ratios[best or second]
        if len(names) == 2 and other.low <= 1 <= other.high:
            return f"no difference between {names[0]} and {names[1]} ({times_[0]})"
        compared = 0 if best else second
        ratio = timing.ratios[best].median / timing.ratios[compared].median
        return (
            f"{names[best]} is fastest: {times_[best]}, {times(ratio)} as fast as "
            f"{names[compared]} ({times_[compared]})"
        )

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return a table with a row per timing and file."""
        rows = [row for timing in self.timings for row in self._rows(timing)]
        if all(timing.phase == "" for timing in self.timings):
            return table([c for c in COLUMNS if c != PHASE], [(*r[:1], *r[2:]) for r in rows])
        return table(COLUMNS, rows)

    def _rows(self, timing: Timing) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for i, (file, spread) in enumerate(zip(self.files, timing.models, strict=True)):
            ratio = timing.ratios[i]
            rows.append(
                (
                    Path(file).name,
                    _phase(timing),
                    str(timing.batch),
                    str(timing.threads),
                    f"{spread.median:.3f} ms",
                    f"{spread.low:.3f} to {spread.high:.3f}",
                    f"{ratio.median:.3f}x" if i else "",
                    f"{ratio.low:.3f} to {ratio.high:.3f}" if i else "",
                    str(timing.rounds),
                )
            )
        return rows


def _phase(timing: Timing) -> str:
    """Return "prompt of 92" or "step after 95", in tokens."""
    if not timing.phase:
        return ""
    count = f"after {timing.cached}" if timing.phase == STEP else f"of {timing.tokens}"
    return f"{timing.phase} {count}"


def bench(
    files: Sequence[str | Path],
    data: Iterable[Any] | None = None,
    *,
    batch_sizes: Sequence[int] | None = None,
    threads: Sequence[int] = ReportOptions.threads,
    runtime: str = NATIVE,
    seconds: float = 10.0,
    precision: float = 0.01,
    bars: Bars = no_bars,
) -> Bench:
    """Time files in turns in one process; decoders with a prompt and, with a KV cache, a step.

    Args:
        files: models with the same inputs; the first is the reference.
        data: batches; the first one is used, cut or repeated. By default random inputs.
        batch_sizes, threads: every pair of them is timed. By default 1 and 32, of files that take
            one size that size.
        runtime: "onnxruntime" for this machine's (LiteRT for .tflite files); "node" for
            onnxruntime-web's WebAssembly in node, on one thread.
        seconds: maximum per pair.
        precision: a pair ends when every ratio's 95 % interval is within this of its median.
        bars: returns a progress bar for a title and a length.

    Raises:
        OptionError: a number is NaN, infinite or out of its range, or the runtime is unknown.
        DataError: files with different inputs, no data, data that does not fit, or a batch size
            that a file does not accept.
        FileError: not a model file.
        VerificationError: a file does not run, or the runtime is not installed.

    Example:
        >>> print(qtool.bench(["model.onnx", "model.int8.onnx"]))
    """
    sizes = ReportOptions.batch_sizes if batch_sizes is None else batch_sizes
    _check_numbers(sizes, threads, seconds, precision)
    paths = model_files(files)
    for path in paths:
        open_file(path)
    if not paths:
        raise DataError("there is no file", CallEdit("give one or more to time"))
    check_same_inputs(paths)
    notes: tuple[str, ...] = ()
    if (only := fixed_batch(paths)) is not None:
        sizes, notes = _only_size(*only, batch_sizes)
    batch = _random_batch(paths, max(sizes)) if data is None else _first_batch(paths[0], data)
    pairs = [(size, count) for count in threads for size in sizes]
    timings = []
    for size, count in bars("timing", len(pairs))(pairs):
        timings += [
            phase.time(paths, threads=count, runtime=runtime, seconds=seconds, precision=precision)
            for phase in phases(paths[:1], batch, size)
        ]
    place = runtime_title(runtime)
    names = tuple(map(str, files))
    return Bench(names, this_machine(), tuple(timings), precision, place, notes)


def _only_size(
    name: str, size: int, wanted: Sequence[int] | None
) -> tuple[Sequence[int], tuple[str, ...]]:
    """Return the batch sizes to time where a file takes one alone, and notes."""
    if wanted is None:
        return (size,), (f"{name} takes batches of {size} alone",)
    if other := [each for each in wanted if each != size]:
        raise DataError(
            f"{name} does not accept batch size {other[0]}",
            Argument("--batch-sizes", size, "time what it takes, {}"),
        )
    return wanted, ()


def _first_batch(path: Path, data: Iterable[Any]) -> list[Array]:
    first = next(iter(Feeder(path, data)), None)
    if first is None:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    return first


def _random_batch(paths: Sequence[Path], size: int) -> list[Array]:
    """Return random inputs of the first file with the sizes that one of them records; the time at
    other sizes says little."""
    known = next(filter(None, (open_file(p).known_sizes() for p in paths)), None)
    return next(random_inputs(paths[0], size, size, known=known))


def _check_numbers(
    batch_sizes: Sequence[int], threads: Sequence[int], seconds: float, precision: float
) -> None:
    for name, value in (("batch_sizes", batch_sizes), ("threads", threads)):
        if not isinstance(value, Sequence):
            raise OptionError(f"{name} is {value!r}", DataEdit(f"give a list, [{value!r}]"))
    for size in batch_sizes:
        Range(low=1, whole=True).check("batch_sizes", size)
    for count in threads:
        THREADS.check("threads", count)
    Range(low=0).check("seconds", seconds)
    Range(low=0).check("precision", precision)
