"""Constants that a file computes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.core.errors import CaptureError
from qtool.frontends.onnx import constant_folding
from qtool.frontends.onnx.onnx_file import load_onnx


def doubling(times: int, path: Path) -> Path:
    """Save y = x + mean(c), where c of 16 values is concatenated with itself `times` times."""
    nodes = [helper.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(times)]
    nodes.append(helper.make_node("ReduceMean", [f"c{times}"], ["mean"], keepdims=0))
    nodes.append(helper.make_node("Add", ["x", "mean"], ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    stored = [numpy_helper.from_array(np.ones(16, np.float32), "c0")]
    made = helper.make_graph(nodes, "g", [x], [y], stored)
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    return path


def test_constants_that_grow_without_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is that of a message of protobuf, 2 GiB; here 1 KiB, which no test waits for."""
    monkeypatch.setattr(constant_folding, "_MESSAGE", 1024)
    load_onnx(doubling(4, tmp_path / "few.onnx"))
    message = (
        r"c5 \(Concat\) reads 2,048 bytes of constants that the file computes; the limit is 1,024"
    )
    with pytest.raises(CaptureError, match=message):
        load_onnx(doubling(8, tmp_path / "many.onnx"))


def test_a_file_computes_no_more_constants_than_a_multiple_of_what_it_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny file would fill the memory below the limit of a message; here from 1 KiB on."""
    monkeypatch.setattr(constant_folding, "_COMPUTED", 1024)
    load_onnx(doubling(3, tmp_path / "few.onnx"))
    with pytest.raises(CaptureError, match=r"c4 \(Concat\) makes the constants .* too many"):
        load_onnx(doubling(40, tmp_path / "many.onnx"))
