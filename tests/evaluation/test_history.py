"""A history of runs: whole lines whoever writes at the same time, and the trend in a report."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import FileError
from qtool.evaluation.history import Run, append_run, make_run, read_history
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.page.trend import make_trend
from tests.windows import like_windows

RUN = Run(
    time="2026-01-02T03:04:05+00:00",
    command="evaluate",
    file="a.onnx",
    sha256="0" * 64,
    model="m",
    qtool="1",
    cpu="A",
    size_bytes=1000,
    speedup=2.0,
    sqnr_db=40.0,
    metrics={"top-1": 0.9},
)


def test_runs_come_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path) == []
    runs = [RUN, replace(RUN, speedup=None, metrics={}, verdict="Ship it")]
    for run in runs:
        append_run(path, run)
    assert read_history(path) == runs


def test_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: append_run(path, replace(RUN, size_bytes=i)), range(40)))
    assert sorted(run.size_bytes for run in read_history(path)) == list(range(40))


def test_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    like_windows(monkeypatch)
    append_run(tmp_path / "history.jsonl", RUN)
    assert read_history(tmp_path / "history.jsonl") == [RUN]


def test_numbers_that_json_lacks_and_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_run(path, replace(RUN, sqnr_db=float("inf"), metrics={"loss": float("nan")}))
    path.write_text(path.read_text().rstrip("\n"))
    append_run(path, RUN)
    first, second = read_history(path)
    assert (first.sqnr_db, first.metrics, second) == (None, {"loss": None}, RUN)


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"schema": 2}', '{"schema": 1, "time": "x"}', "[" * 100_000]
)
def test_what_is_no_history(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    append_run(path, RUN)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(FileError, match="line 2 is no run"):
        read_history(path)


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        append_run(tmp_path, RUN)
    with pytest.raises(FileError, match="cannot read the history"):
        read_history(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history.jsonl")
    with pytest.raises(FileError, match="not a regular file"):
        read_history(tmp_path / "history.jsonl")


def test_a_trend_is_of_one_model_and_speed_of_one_processor() -> None:
    other = replace(RUN, model="other", sqnr_db=1.0)
    assert make_trend([other, RUN]) is None
    trend = make_trend([RUN, other, replace(RUN, cpu="B", sqnr_db=30.0, speedup=9.0), RUN])
    assert trend is not None
    lines = {line.name: line.values for line in trend.lines}
    assert lines["speed-up on A"] == ("2.00x", "", "2.00x")
    assert lines["SQNR, dB"] == ("40.0", "30.0", "40.0")
    assert lines["top-1"] == ("0.9", "0.9", "0.9")


def test_a_report_shows_the_trend_and_joins_the_history(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), torch.randn(16, 8)
    file, history = tmp_path / "model.onnx", tmp_path / "history.jsonl"
    qtool.quantize(model, [x], accuracy="fast").export(file)
    append_run(history, make_run("evaluate", file, str(file), 10, sqnr_db=50.0))
    options = ReportOptions(batch_sizes=(1,), seconds=0.01, history=history)
    qtool.report(file, [x], tmp_path / "report", options, model=model)
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert 'id="trend"' in page
    assert "## Trend" in (tmp_path / "report" / "report.md").read_text("utf-8")
    first, second = read_history(history)
    assert (first.command, second.command) == ("evaluate", "report")
    assert second.model == first.model
    assert second.verdict
    assert "trend" not in json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))
