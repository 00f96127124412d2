"""A report written: the folder is checked before the work, and results kept until it is done."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx import storage
from qtool.core.errors import FileError
from qtool.core.store import Store
from qtool.evaluation.report.page.write import write_report
from tests.evaluation.report.page.made_up import made_up


def one_weight():
    weight = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2000]) for n in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]))


def test_measured_then_written(tmp_path):
    folder, model = tmp_path / "r", tmp_path / "model.int8.onnx"
    kept = []

    def measure(keep):
        assert not folder.exists()
        kept.append(keep)
        Store(keep).save("a", {})
        storage.save(one_weight(), model, external=True)
        return made_up()

    report = write_report(folder, measure, model)
    assert report == made_up()
    assert (folder / "report.json").read_text() == report.text()
    for name in ("model.int8.onnx", "model.int8.onnx.data"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert not kept[0].exists()


def test_a_folder_of_something_else_is_refused_before_the_work(tmp_path):
    (tmp_path / "notes.txt").touch()
    asked = []
    with pytest.raises(FileError, match="not part of a report"):
        write_report(tmp_path, asked.append)
    assert asked == []


def test_a_failure_keeps_the_old_report_and_what_was_measured(tmp_path):
    folder = tmp_path / "r"
    write_report(folder, lambda keep: made_up())
    before = (folder / "report.json").read_bytes()

    def fails(keep):
        Store(keep).save("a", {})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report(folder, fails)
    assert (folder / "report.json").read_bytes() == before
    assert [p.name for p in (tmp_path / ".r.resume").iterdir()] == ["a.npz"]
