"""Moves do to codes what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.integer_engine.moves import MOVES, move_of

NEAREST = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
CASES: dict[str, tuple[str, tuple[int, ...], list[Any], dict[str, Any]]] = {
    "reshape": ("Reshape", (2, 6), [[0, 2, -1]], {}),
    "flatten": ("Flatten", (2, 3, 4), [], {"axis": 2}),
    "flatten a row": ("Flatten", (5,), [], {}),
    "transpose": ("Transpose", (2, 3, 4), [], {"perm": [2, 0, 1]}),
    "transpose all": ("Transpose", (2, 3, 4), [], {}),
    "squeeze": ("Squeeze", (2, 1, 3, 1), [[1, -1]], {}),
    "squeeze all": ("Squeeze", (2, 1, 3, 1), [], {}),
    "unsqueeze": ("Unsqueeze", (2, 3), [[0, -1]], {}),
    "slice": ("Slice", (4, 6), [[1], [9], [1], [2]], {}),
    "slice from the end": ("Slice", (4, 6), [[-3, 0], [-1, 4]], {}),
    "slice backwards": ("Slice", (4, 6), [[5], [0], [1], [-2]], {}),
    "slice backwards to the end": ("Slice", (4, 6), [[3], [2**31 - 1], [1], [-1]], {}),
    "slice backwards, nothing": ("Slice", (4, 6), [[1], [4], [1], [-1]], {}),
    "slice backwards from before the first": ("Slice", (4, 6), [[-9], [-20], [1], [-1]], {}),
    "empty slice": ("Slice", (4, 6), [[3], [3], [0]], {}),
    "gather": ("Gather", (3, 4, 2), [[2, 0, -1]], {"axis": 1}),
    "gather a grid of rows": ("Gather", (3, 4), [[[0, 1], [2, -2]]], {}),
    "gather a grid": ("Gather", (3, 4), [[[0, 1], [2, 3]]], {"axis": 1}),
    "gather rows": ("Gather", (3, 4), [[2, 0, -1]], {"axis": 0}),
    "gather one": ("Gather", (3, 4), [1], {"axis": 0}),
    "tile": ("Tile", (1, 3, 2), [[2, 1, 3]], {}),
    "resize": ("Resize", (1, 2, 3, 5), [None, [1.0, 1.0, 2.0, 1.4]], NEAREST),
    "resize to sizes": ("Resize", (1, 2, 3, 7), [None, None, [1, 2, 5, 3]], NEAREST),
    "expand": ("Expand", (1, 3, 1), [[2, 1, 4]], {}),
    "depth to space": ("DepthToSpace", (1, 8, 2, 3), [], {"blocksize": 2}),
    "depth to space, columns": ("DepthToSpace", (1, 8, 2, 3), [], {"blocksize": 2, "mode": "CRD"}),
    "reduce max": ("ReduceMax", (2, 3, 4), [[1]], {}),
    "reduce max, axes dropped": ("ReduceMax", (2, 3, 4, 5), [[-1, 2]], {"keepdims": 0}),
    "reduce max over all": ("ReduceMax", (2, 3, 4), [], {}),
    "reduce min": ("ReduceMin", (3, 4, 2), [[0]], {"keepdims": 0}),
    "reduce min of nothing": ("ReduceMin", (3, 4), [], {"noop_with_empty_axes": 1}),
    "identity": ("Identity", (2, 3), [], {}),
}


def _real(constant: list[Any] | Any) -> bool:
    return isinstance(constant, list) and isinstance(constant[0], float)


def built(op: str, constants: list[Any], attributes: dict[str, Any]) -> onnx.ModelProto:
    names = [f"c{i}" if c is not None else "" for i, c in enumerate(constants)]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    arrays = [
        numpy_helper.from_array(np.array(c, np.float32 if _real(c) else np.int64), n)
        for c, n in zip(constants, names, strict=True)
        if n
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, None)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)
    graph = helper.make_graph([node], "move", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("name", CASES)
def test_a_move_is_what_the_runtime_does(name: str) -> None:
    op, shape, constants, attributes = CASES[name]
    file = built(op, constants, attributes)
    codes = np.random.default_rng(0).permutation(np.prod(shape)).astype(np.uint8).reshape(shape)
    (expected,) = ort.InferenceSession(
        file.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"x": codes})
    move = move_of(OnnxModel.of(file).nodes[0])
    assert move is not None
    actual = move(torch.from_numpy(codes)).numpy()
    assert actual.shape == expected.shape
    assert np.array_equal(actual, expected)


def test_every_move_has_a_case() -> None:
    assert {case[0] for case in CASES.values()} == set(MOVES)


def test_a_move_with_computed_arguments_is_none() -> None:
    file = built("Reshape", [[0, 2, -1]], {})
    del file.graph.initializer[:]
    assert move_of(OnnxModel.of(file).nodes[0]) is None
