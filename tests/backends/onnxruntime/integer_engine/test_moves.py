"""Moves of codes, and operators that stay float between them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import qtool
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime import planned_export
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.integer_engine.operators import MOVES, move_of
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes

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


WIDTH, HEADS = 32, 4


class Encoder(nn.Module):
    """Two layers as BERT has them: attention, residual adds, norms behind them, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x.mean(1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS) + mask[:, None, None]
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


def batch(samples: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, length, WIDTH, generator=generator)
    return x, torch.where(torch.arange(length) < length - 2, 0.0, -1e4).expand(samples, -1).clone()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    dynamic = {n: {0: "batch", 1: "sequence"} for n in ("x", "mask")}
    captured = qtool.capture_model(Encoder().eval(), batch(8, 12), dynamic)
    path = tmp_path_factory.mktemp("islands") / "encoder.onnx"
    quantized = qtool.quantize(captured, [batch(8, 12)], accuracy="fast")
    with pytest.MonkeyPatch.context() as patch:  # additions that the runtime fuses with norms
        patch.setattr(planned_export, "ONNX_WORKAROUNDS", ())
        quantized.export(path)
    return path


def test_fused_float_kernels_round_alike(file: Path) -> None:
    kernels = {n.op_type for n in optimised_graph(file).graph.node}
    assert "SkipLayerNormalization" in kernels  # an add and a norm in one
    sizes = [batch(1, 7), batch(5, 12), batch(3, 20)]
    found = compare_codes(file, [[t.numpy() for t in s] for s in sizes])
    assert found.float_steps
    assert found.exact, str(found)


def test_shapes_are_what_fusion_hangs_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxModel, "value_info", {})
    found = compare_codes(file, [[t.numpy() for t in batch(5, 12)]])
    assert not found.exact


def test_an_island_lies_between_integer_steps(file: Path) -> None:
    program = lower(file)
    islands = [s for s in program.instructions if s.kind == "float"]
    nodes = len(onnx.load(file).graph.node)
    assert 2 < len(islands) < 12
    assert sum(s.node_count for s in islands) == program.float_nodes < nodes
    assert any(len(s.outputs) > 1 for s in islands)  # a norm, and what the residual reads
    made: set[str] = {*program.inputs, *program.constants}
    for step in program.instructions:
        assert made.issuperset(step.inputs)
        made |= set(step.outputs)
