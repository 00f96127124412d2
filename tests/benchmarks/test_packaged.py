"""Trained networks out of packages: tasks, sizes and the page, on values that are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.packages.networks import NETWORKS
from benchmarks.packages.one_network import INTERNAL, REMEDY
from benchmarks.packages.page import page
from benchmarks.packages.sizes import other_sizes
from benchmarks.packages.tasks import Task, boxes, classes, close, cosine, lines, mask
from benchmarks.truth.measured import open_file


def test_networks_are_many_and_of_four_kinds() -> None:
    assert len(NETWORKS) >= 25
    assert {n.kind for n in NETWORKS.values()} == {"vision", "audio", "text", "time series"}
    assert all("==" in n.package for n in NETWORKS.values())


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


def test_page_has_rows_refusals_and_sizes() -> None:
    machine = {"cpu": "a CPU", "features": [], "system": "Linux", "versions": {}}
    row = {"network": "magika.48", "name": "magika", "samples": 48, "machine": machine}
    row |= {"stderr": "warning: dimension 1 of 'x' is fixed to 4", "printed": ""}
    output = {"median_db": 20.0, "pooled_db": 18.0}
    ours = {"outputs": {"y": output}, "agreement": 0.9, "after": 0.9, "bytes": 50}
    good = row | {"outcome": "ok", "remedies": ["--batch-size 1"], "before": 1.0, "internal": []}
    good |= {"files": {"qtool": ours, "static": {"error": "no"}, "dynamic": {"after": 0.95}}}
    good |= {
        "float_bytes": 100,
        "cpu_seconds": 5,
        "peak_gib": 1,
        "sizes": {"N=2": "ok", "W=3": "?"},
    }
    refused = row | {"network": "khmersm.48", "name": "khmersm", "outcome": "refused"}
    refused |= {"refusals": ["Error: a sentence"], "remedies": []}
    text = page({"abc": [good, refused]})
    assert "| magika | 48 | `--batch-size 1` | 20.0, 18.0 | 1.000 -> 0.900 / none / 0.950 |" in text
    assert "- khmersm.48: refused: Error: a sentence" in text
    assert "- magika.48: at W=3: ?" in text
    assert "| 1 of 2, said |" in text
    assert "| networks with sizes that are not taken, and nothing said | 0 |" in text
    assert "nothing said | 1 |" in page({"abc": [good | {"stderr": ""}]})
    assert "| task metric above, as good as, below that of dynamic | 0, 0, 1 |" in text
