"""A report written: the folder is checked before the work, and results kept until it is done."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx import storage
from qtool.core.store import Store
from qtool.evaluation.report.page.write import ReportFolder
from tests.evaluation.report.page.made_up import made_up


def one_weight():
    weight = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2000]) for n in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]))


def test_measured_then_written(tmp_path):
    folder, model = tmp_path / "r", tmp_path / "model.int8.onnx"
    pages = ReportFolder.of(folder)
    assert not folder.exists()
    Store(pages.kept).save("a", {})
    storage.save(one_weight(), model, external=True)
    report = pages.write(made_up(), model)
    assert report == made_up()
    assert (folder / "report.json").read_text() == report.text()
    for name in ("model.int8.onnx", "model.int8.onnx.data"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert not pages.kept.exists()


def test_until_a_report_is_written_the_old_one_stays(tmp_path):
    folder = tmp_path / "r"
    ReportFolder.of(folder).write(made_up())
    before = (folder / "report.json").read_bytes()
    Store(ReportFolder.of(folder).kept).save("a", {})
    assert (folder / "report.json").read_bytes() == before
    assert [p.name for p in (tmp_path / ".r.resume").iterdir()] == ["a.npz"]
