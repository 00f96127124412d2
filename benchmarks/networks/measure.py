"""One network: the files of all tools, measured on the same new samples and timed in turns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fresh_process import run_fresh
from benchmarks.measured import Runner, integer_share, open_file, sqnr
from benchmarks.networks.make import Workplace, make_file, write_float
from benchmarks.networks.sizes import other_sizes
from benchmarks.networks.subject import Arrays, Places, Subject
from benchmarks.networks.tasks import Task

__all__ = ["measure", "workplace"]

TIMED = Path(__file__).parents[1] / "timed.py"
Samples = Sequence[Arrays]


def workplace(
    kind: str,
    subject: Subject,
    count: int,
    places: Places,
    python: str,
    folder: Path,
    new: int = 0,
    peers: Path | None = None,
) -> tuple[Workplace, Arrays]:
    """Draw the samples of a network, and write those of the calibration into a folder.

    Returns:
        Where its files are made, and the new samples with their labels.
    """
    os.environ.update(places.environment())
    arrays, rest = subject.split(places, count, new or subject.new)
    work = Workplace(kind, subject, places, python, peers, folder, arrays)
    work.start()
    return work, rest


def measure(work: Workplace, rest: Arrays, tools: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the row: what is known of the network, and "tools" with the figures of each."""
    subject = work.subject
    count = len(next(iter(work.arrays.values())))
    row: dict[str, Any] = {
        "network": f"{subject.name}.{count}",
        "name": subject.name,
        "group": subject.group,
        "source": subject.source,
        "samples": count,
        "outcome": "failed",
    }
    try:
        plain = write_float(work)
        row["tools"] = {name: make_file(work, name, plain) for name in tools}
        _judge(work, plain, rest, row)
        _time(work, plain, seconds, row)
        row["outcome"] = "ok"
    except Exception as error:  # noqa: BLE001  # a row says what went wrong
        row["error"] = _line(error, work.folder, 400)
    for figures in row.get("tools", {}).values():
        figures.pop("file", None)
    return row


def _line(error: Exception, folder: Path, length: int) -> str:
    text = " ".join(str(error).split()).replace(f"{folder}/", "")
    return f"{type(error).__name__}: {text}"[:length]


def _judge(work: Workplace, plain: Path, rest: Arrays, row: dict[str, Any]) -> None:
    """Against the float file, and against the labels where there are some."""
    task, whole = work.subject.task, work.subject.whole
    labels = rest.pop("label", None)
    labels = None if labels is None else list(labels)
    number = len(next(iter(rest.values())))
    each: Samples = [
        {k: np.asarray(a[i]) if whole else a[i : i + 1] for k, a in rest.items()}
        for i in range(number)
    ]
    float_run = open_file(plain)
    real = [float_run(x) for x in each]
    row["new"], row["float_bytes"] = number, _bytes(plain)
    if task:
        choices = [task.decide(o) for o in real]
        before = task.score(choices, choices) if labels is None else task.judge(labels, choices)
        row |= {"task": task.words, "before": before}
    for name, figures in row["tools"].items():
        if "file" not in figures:
            continue
        file = Path(figures["file"])
        try:
            run = open_file(file)
            coded = [run(x) for x in each]
            figures |= {"bytes": _bytes(file), "outputs": _decibels(real, coded)}
            figures |= _decided(task, labels, real, coded) if task else {}
            if file.suffix == ".onnx":
                figures["integer"] = integer_share(file, each[0])
                figures["sizes"] = _sizes(plain, float_run, run, each[0])
        except Exception as error:  # noqa: BLE001  # a file that does not run is a result
            figures["error"] = f"{name} makes no file that runs: {_line(error, work.folder, 160)}"
            figures.pop("file")


def _decibels(real: Sequence[Any], coded: Sequence[Any]) -> dict[str, Any]:
    """SQNR of each output; nothing where all are class numbers."""
    if all(v.dtype.kind != "f" for v in real[0].values()):
        return {}
    outputs = sqnr(list(zip(real, coded, strict=True)), whole=True)
    outputs.pop("together")
    return outputs


def _decided(
    task: Task, labels: list[Any] | None, real: Sequence[Any], coded: Sequence[Any]
) -> dict[str, Any]:
    """The task metric, its standard error against the float file, and equal decisions."""
    before, after = ([task.decide(o) for o in outputs] for outputs in (real, coded))
    figures: dict[str, Any] = {"agreement": task.score(before, after)}
    figures["after"] = figures["agreement"] if labels is None else task.judge(labels, after)
    if labels is not None and task.mean:
        pairs = zip(labels, before, after, strict=True)
        lost = [task.judge([y], [a]) - task.judge([y], [b]) for y, a, b in pairs]
        figures["drop_error"] = float(np.std(lost) / np.sqrt(len(lost)))
    return figures


def _sizes(plain: Path, float_run: Runner, run: Runner, sample: Arrays) -> Mapping[str, str]:
    try:
        return other_sizes(plain, float_run, run, sample)
    except Exception as error:  # noqa: BLE001  # a result
        return {"loading": " ".join(str(error).split())[:200]}


def _time(work: Workplace, plain: Path, seconds: float, row: dict[str, Any]) -> None:
    """All files of one format in turns with their float file, at each batch size."""
    for suffix, float_file in ((".onnx", plain), (".tflite", work.folder / "float.tflite")):
        tools = {n: f for n, f in row["tools"].items() if f.get("file", "").endswith(suffix)}
        for size in work.subject.timed if tools and seconds and float_file.exists() else ():
            arrays = work.arrays
            first = {
                k: np.asarray(a[0]) if work.subject.whole else a[:size] for k, a in arrays.items()
            }
            inputs = work.folder / f"timed{size}.npz"
            np.savez(inputs, **first)
            files = [str(float_file), *(f["file"] for f in tools.values())]
            timings: Any = run_fresh(str(TIMED), str(inputs), str(seconds), *files)
            for figures, timing in zip(tools.values(), timings["files"], strict=True):
                figures.setdefault("speed", {})[str(size)] = timing


def _bytes(file: Path) -> int:
    """With its external data."""
    return sum(p.stat().st_size for p in (file, Path(f"{file}.data")) if p.exists())
