"""What benchmarks/same_files.py says of two files: where they differ, or nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.same.differences import differences, folder_differences
from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor, save


def _onnx(file: Path, weight: float = 1, code: int = 1, op: str = "Relu", note: str = "1") -> None:
    values = {"w": np.float32([weight]), "q": np.int8([code])}
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], name="first")], "g", [x], [y])
    graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    model = helper.make_model(graph)
    helper.set_model_props(model, {"numbers": note, "words": f"a sentence of {note}"})
    onnx.save(model, file)


def _tflite(file: Path, scale: float = 1, code: int = 1, op: str = "RELU", note: str = "1") -> None:
    scales = Quantization(np.float32([scale]), np.int64([0]))
    tensors = [Tensor(n, "int8", (1,), quantization=scales) for n in "xyw"]
    tensors[2] = replace(tensors[2], data=np.int8([code]))
    notes, names = {"numbers": note.encode()}, PortNames(("x",), ("y",))
    operators = (Operator(op, (0,), (1,)),)
    save(Model(tuple(tensors), operators, (0,), (1,), metadata=notes, names=names), file)


@pytest.mark.parametrize(
    ("write", "changes", "words"),
    [
        (_onnx, {}, ""),
        (_onnx, {"weight": 2}, "weights w"),
        (_onnx, {"code": 2}, "codes q"),
        (_onnx, {"op": "Abs"}, "graph, from node first"),
        (_onnx, {"note": "2"}, "metadata numbers"),
        (_tflite, {}, ""),
        (_tflite, {"scale": 2}, "types or scales of x y w"),
        (_tflite, {"code": 2}, "codes w"),
        (_tflite, {"op": "ABS"}, "graph"),
        (_tflite, {"note": "2"}, "metadata numbers"),
    ],
)
def test_where_files_differ(
    tmp_path: Path, write: Callable[..., None], changes: dict[str, str], words: str
) -> None:
    files = [tmp_path / side / f"model.{write.__name__[1:]}" for side in ("before", "after")]
    for file, options in zip(files, ({}, changes), strict=True):
        file.parent.mkdir()
        write(file, **options)
    assert differences(*files) == words
    (tmp_path / "after" / "more.json").write_text("{}")
    (tmp_path / "after" / "model.1.data").write_text("named by its digest")
    named = [f"{files[0].name}: {words}"] if words else []
    assert folder_differences(tmp_path / "before", tmp_path / "after") == ", ".join(
        ["only one has more.json", *named]
    )
