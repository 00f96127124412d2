"""Networks and tools: tasks, sizes, factories and the page, on values that are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.measured import open_file
from benchmarks.networks import factories
from benchmarks.networks.make import INTERNAL, REMEDY
from benchmarks.networks.page import page
from benchmarks.networks.sets import SETS
from benchmarks.networks.sizes import other_sizes
from benchmarks.networks.tasks import (
    Task,
    boxes,
    classes,
    close,
    cosine,
    lines,
    mask,
    pairs_in_order,
)


def test_sets_have_rows_and_factories_of_their_modules() -> None:
    packaged = SETS["packaged"]().values()
    assert {s.group for s in packaged} == {"vision", "audio", "text", "time series"}
    assert all("==" in s.source and s.needs for s in packaged)
    for kind, rows in SETS.items():
        assert len(rows()) >= 6
        for name, subject in rows().items():
            assert subject.name == name
            assert (getattr(factories, f"{kind}__{name}", None) is None) == (subject.build is None)


@pytest.mark.parametrize(
    ("task", "left", "right", "score"),
    [
        (classes(), [[[0.1, 0.9], [0.8, 0.2]]], [[[0.4, 0.6], [0.3, 0.7]]], 0.5),
        (mask(0.5), [[[1, 1, 0, 0]]], [[[1, 0, 0, 0]]], 2 / 3),
        (close(0.1), [[[1.0, 2.0]]], [[[1.05, 2.2]]], 0.5),
        (cosine(), [[[1.0, 0.0]]], [[[1.0, 1.0]]], 0.5**0.5),
        (lines((0,), indices=True), [[[3, 3, 0, 3]]], [[[3, 0, 3, 0]]], 1.0),
        (lines((0,)), [[[[1, 0], [0, 1]]]], [[[[0, 1], [0, 1]]]], 1.0),
        (lines((0,)), [[[[1, 0, 0], [0, 1, 0]]]], [[[[1, 0, 0], [0, 0, 1]]]], 0.0),
    ],
)
def test_scores(task: Task, left: Any, right: Any, score: float) -> None:
    first, second = ([task.decide({"y": np.array(v)}) for v in side] for side in (left, right))
    assert task.score(first, second) == pytest.approx(score)
    assert task.score(first, first) == pytest.approx(1)


def test_boxes_are_matched_by_overlap() -> None:
    task = boxes("yolov8", 64, 0.5)
    both = np.array([[[10, 40, 10], [10, 40, 11], [8, 8, 8], [8, 8, 8], [0.9, 0.8, 0.7]]], float)
    one = both.copy()
    one[0, 4, 1] = 0.1  # below the threshold; the third is a double of the first
    choices = [task.decide({"y": value}) for value in (both, one)]
    assert [len(c) for c in choices] == [2, 1]
    assert task.score(choices[:1], choices[1:]) == pytest.approx(2 / 3)


def test_sizes_that_a_file_does_not_take(tmp_path: Path) -> None:
    def write(name: str, size: str | int) -> Path:
        tensor = onnx.TensorProto.FLOAT
        ends = [helper.make_tensor_value_info(v, tensor, ["N", size]) for v in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    free, fixed = write("free.onnx", "W"), write("fixed.onnx", 4)
    sample = {"x": np.ones((1, 4), np.float32)}
    results = other_sizes(free, open_file(free), open_file(fixed), sample)
    assert {k: v.split(":")[0] for k, v in results.items()} == {
        "N=2": "ok",
        "W=5": "fails",
        "W=8": "fails",
        "W=3": "fails",
    }


def test_options_and_internal_messages_in_what_is_printed() -> None:
    text = "give batches of 1 (--batch-size 1), or `--fix sr=16000`."
    assert [m[0] for m in REMEDY.finditer(text)] == ["--batch-size 1", "--fix sr=16000"]

    def kinds(said: str) -> set[str]:
        return {kind for kind, words in INTERNAL.items() if re.search(words, said)}

    assert kinds("a.py:3: UserWarning: not writable") == {"library warning"}
    assert kinds("<built-in function getitem> cannot run") == {"python value"}
    assert kinds("tuple index out of range") == {"exception name"}
    assert not kinds("warning: calibrated on 16 samples; 'conv' (Conv) in float; torch 2.13")


def test_pairs_of_vectors_are_ranked_as_people_rank_them() -> None:
    task = pairs_in_order()
    vectors = [np.array(v, float) for v in ([1, 0], [1, 0], [1, 0], [1, 1], [1, 0], [0, 1])]
    assert task.judge([3.0, 3.0, 2.0, 2.0, 1.0, 1.0], vectors) == pytest.approx(1)
    assert task.judge([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], vectors) == pytest.approx(-1)


def test_page_has_a_row_for_each_tool() -> None:
    machine = {"cpu": "a CPU", "features": [], "system": "Linux", "versions": {}}
    costs: dict[str, Any] = {"cpu_seconds": 5, "peak_gib": 1}
    outputs = {"y": {"median_db": 20.0, "pooled_db": 18.0}}
    speed = {"1": {"ratio": 2.0, "low": 1.9, "high": 2.1}}
    ours = {**costs, "outputs": outputs, "agreement": 0.9, "after": 0.9, "bytes": 50}
    ours |= {"remedies": ["--batch-size 1"], "speed": speed, "sizes": {"N=2": "ok", "W=3": "?"}}
    ours |= {"stderr": "warning: dimension 1 of 'x' is fixed to 4", "integer": 0.5}
    theirs = {**costs, "outputs": {}, "after": 0.95, "agreement": 0.95, "bytes": 25}
    tools = {"qtool": ours, "static": {**costs, "error": "no"}, "dynamic": theirs}
    row = {"network": "magika.48", "name": "magika", "group": "text", "source": "magika==1.0.3"}
    row |= {"samples": 48, "outcome": "ok", "machine": machine, "task": "same class", "before": 1.0}
    text = page("packaged", "abc", [row | {"tools": tools, "float_bytes": 100}])
    assert "| magika | 48 | qtool | `--batch-size 1` | 20.0, 18.0 | 1.000 -> 0.900 |" in text
    assert "| 2.00 (1.90 to 2.10) | 0.50 | 0.500 | 5 | 1.0 | 1 of 2, said |" in text
    assert "| qtool | 1 | 1 | 1 | 1 | 1 of 2 | 0 | 0 | 1, 0, 0 | 0, 0, 1 |" in text
    assert "- magika.48, static: no file: no" in text
    assert "- magika.48, qtool, at W=3: ?" in text
    silent = page(
        "packaged", "abc", [row | {"tools": {"qtool": {**ours, "stderr": ""}}, "float_bytes": 1}]
    )
    assert "| 1 of 2 | 1 | 0 |" in silent
