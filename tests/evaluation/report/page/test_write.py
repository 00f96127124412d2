"""A report written to its folder."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx import storage
from qtool.evaluation.report.page.write import write_report
from tests.evaluation.report.page.made_up import made_up


def one_weight():
    weight = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2000]) for n in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]))


def test_a_report_has_the_model_with_its_weights(tmp_path):
    folder, model = tmp_path / "r", tmp_path / "model.int8.onnx"
    storage.save(one_weight(), model, external=True)
    report = write_report(folder, made_up(), model)
    assert report == made_up()
    assert (folder / "report.json").read_text() == report.text()
    for name in ("model.int8.onnx", "model.int8.onnx.data"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
