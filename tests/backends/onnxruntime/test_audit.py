"""The audit says what the runtime really runs, for files of qtool and of others."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

import qtool
from qtool.backends.onnxruntime.audit import INTEGER, audit
from tests.backends.onnx.export.networks import (
    NETWORKS,
    computing,
    exported,
    float_file,
    model,
    optimised,
    samples,
)

every = pytest.mark.parametrize("name", list(NETWORKS))
OTHERS = ["residual", "concat", "depthwise_relu6", "max_pool", "linear", "padded_shortcut"]


@every
def test_macs_are_those_counted_by_hand(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported(name))
    found, row = audit(path), NETWORKS[name]
    integer = row.macs if row.integer is None else row.integer
    assert found.macs == row.macs
    assert found.share == integer / row.macs
    assert found.runtime == f"onnxruntime {onnxruntime.__version__}"
    for each in found.float_rows:
        assert each.reason


@every
def test_a_float_file_has_no_integer_kernel(name: str, tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    path.write_bytes(float_file(name))
    found = audit(path)
    assert (found.share, found.macs) == (0, NETWORKS[name].macs)
    assert [r.name for r in found.rows if r.integer] == []
    kernels = Counter(r.kernel for r in found.rows)
    assert not {"Transpose", "ReorderOutput"} & set(kernels)
    assert all(r.reason for r in found.rows)


def test_kernels_in_blocks_of_channels_are_those_of_their_nodes(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    nodes = []
    for index, channels in enumerate((8, 16, 16)):
        weight = numpy_helper.from_array(np.ones((16, channels, 3, 3), np.float32))
        nodes += [
            helper.make_node("Constant", [], [f"w{index}"], value=weight),
            helper.make_node(
                "Conv", [f"x{index}", f"w{index}"], [f"y{index}"], f"conv{index}", pads=[1] * 4
            ),
            helper.make_node("Relu", [f"y{index}"], [f"x{index + 1}"], f"relu{index}"),
        ]
    nodes.append(helper.make_node("Concat", ["x1", "x2"], ["both"], "both", axis=1))
    x, *ys = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, size, 12, 12))
        for name, size in (("x0", 8), ("both", 32), ("x3", 16))
    )
    graph = helper.make_graph(nodes, "convs", [x], ys)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    assert [r.kernel for r in audit(path).rows if r.macs] == ["Conv"] * 3


class Reader(CalibrationDataReader):
    def __init__(self, name: str) -> None:
        batches = [samples(name, 4, seed) for seed in range(3)]
        names = NETWORKS[name].input_names
        self.feeds = iter([dict(zip(names, map(np.asarray, b), strict=True)) for b in batches])

    def get_next(self) -> dict[str, np.ndarray]:
        return next(self.feeds, None)


def other_tool(name: str, folder: Path, **options: object) -> Path:
    """A file made by the runtime's own quantizer."""
    source, path = folder / "float.onnx", folder / "other.onnx"
    source.write_bytes(float_file(name))
    quantize_static(source, path, Reader(name), **options)
    return path


@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8], ids=["S8S8", "U8S8"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_tool(name: str, activations: QuantType, tmp_path: Path) -> None:
    path = other_tool(name, tmp_path, activation_type=activations)
    found = audit(path)
    running = computing(optimised(onnx.load(path)).graph)
    integer = sum(n for op, n in running.items() if op.startswith("QLinear") or op == "QGemm")
    pools = running["MaxPool"] + running["NhwcMaxPool"]
    assert sum(r.integer for r in found.rows) == integer + pools
    floats = Counter(r.kernel for r in found.float_rows)
    assert floats == {op: running[op] for op in ("Conv", "FusedConv", "Gemm") if running[op]}
    assert all(r.reason for r in found.float_rows)
    assert found.macs == NETWORKS[name].macs
    if activations is QuantType.QUInt8:
        assert found.share == 1


def test_int8_activations_lose_layers_beside_a_branch(tmp_path: Path) -> None:
    """The default of the other tool: 2 of 3 convolutions of a residual block stay in float."""
    found = audit(other_tool("residual", tmp_path))
    assert [r.name for r in found.float_rows] == ["conv1.0", "shortcut.0"]
    assert found.share == pytest.approx((64 * 9 * 8 * 8 + 8 * 5) / NETWORKS["residual"].macs)


def test_operators_that_stand_in_integers_in_the_file_count(tmp_path: Path) -> None:
    found = audit(other_tool("residual", tmp_path, quant_format=QuantFormat.QOperator))
    assert (found.share, found.macs) == (1, NETWORKS["residual"].macs)
    assert all(r.op in INTEGER for r in found.rows)
    assert len(found.rows) == 6


def test_nodes_without_names_are_found_by_what_they_compute(tmp_path: Path) -> None:
    file = model("residual")
    for node in file.graph.node:
        node.name = ""
    del file.metadata_props[:]
    onnx.save(file, tmp_path / "nameless.onnx")
    onnx.save(model("residual"), tmp_path / "named.onnx")
    nameless, named = audit(tmp_path / "nameless.onnx"), audit(tmp_path / "named.onnx")
    assert [(r.kernel, r.integer) for r in nameless.rows] == [
        (r.kernel, r.integer) for r in named.rows
    ]
    assert nameless.macs == named.macs


def test_a_layer_that_loses_its_quantization_is_float(tmp_path: Path) -> None:
    """The audit looks at the runtime's graph, not at what the plan in the file claims."""
    file = model("linear")
    quantize = next(n for n in file.graph.node if n.op_type == "QuantizeLinear")
    for node in file.graph.node:
        if node.op_type == "Gemm" and node.name == "0":
            node.input[0] = quantize.input[0]
    onnx.save(file, tmp_path / "model.onnx")
    found = audit(tmp_path / "model.onnx")
    assert [r.name for r in found.float_rows] == ["0"]
    assert found.share == pytest.approx(1 - 48 / 136)
    assert found.float_rows[0].reason == "its input input is not quantized"


class Product(nn.Module):
    """A product of two activations in codes, left in float by the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv1d(4, 8, 3, padding=1), nn.Conv1d(4, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.one(x), self.other(x).transpose(1, 2))


def test_a_product_that_the_runtime_takes_in_codes_counts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    quantized = qtool.quantize(Product().eval(), [torch.randn(8, 4, 8)], accuracy="fast")
    assert quantized.plan.decision("matmul").execution.value == "float"
    found = quantized.export(tmp_path / "product.onnx").coverage
    (row,) = (r for r in found.rows if r.name == "matmul")
    assert row.kernel == "MatMulIntegerToFloat"
    assert (row.integer, row.reason) == (True, "")
    assert found.share == 1.0


@pytest.mark.parametrize("level", [None, 1, 4])
def test_a_level_that_computes_in_float_is_said(level: int | None, tmp_path: Path) -> None:
    helper, path = onnx.helper, tmp_path / "bits.onnx"
    given = {} if level is None else {"accuracy_level": level}
    sizes = {"K": 32, "N": 4, "bits": 4, "block_size": 32}
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], "bits", domain="com.microsoft", **sizes, **given
    )
    constants = {"w": np.zeros((4, 1, 16), np.uint8), "s": np.ones(4, np.float32)}
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", float32, [1, 32])],
        [helper.make_tensor_value_info("y", float32, [1, 4])],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    (row,) = audit(path).rows
    assert row.weights_only
    assert ("set accuracy_level = 4" in row.reason) == (level != 4)


class Activations(nn.Module):
    """Two layers, and operators without an integer kernel between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.act, self.norm = nn.SiLU(), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.mish(self.act(self.first(x))).mean((2, 3))
        return self.last(self.norm(x))


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only"])
def test_every_place_has_the_same_operators_and_macs(mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Activations().eval()
    quantized = qtool.quantize(model, [torch.rand(8, 3, 6, 6)] * 4, mode=mode, accuracy="fast")
    planned = repr(quantized).partition(": ")[2].rstrip(">")
    found = quantized.export(tmp_path / "m.onnx", timing=0).coverage
    label, figures = found.row()
    assert planned.removeprefix(f"for onnxruntime, {label}: ").endswith(figures)
    read = qtool.inspect(tmp_path / "m.onnx").coverage
    assert (read.row(), quantized.coverage.row()) == (found.row(), found.row())
    assert read.macs == 4 * 4 * 8 * 27 + 8 * 4
    names = [r.name for r in found.rows]
    assert {"first", "last", "act", "norm"} < set(names)
    assert any("mish" in name for name in names)
    assert len(names) == len(set(names))


PARTS = {  # network between two layers of 8 x 8 on [N, 4, 8]: its MACs for one sample
    "Attention": (lambda: {"q_num_heads": 2, "kv_num_heads": 2}, ["h", "h", "h"], 2 * 4 * 4 * 8),
}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_kept_from_a_file_count(kind: str, tmp_path: Path) -> None:
    helper, (attributes, inputs, count) = onnx.helper, PARTS[kind]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node(kind, inputs, ["m"], "middle", **attributes()),
        helper.make_node("MatMul", ["m", "w"], ["y"], "last"),
    ]
    constants = {
        "w": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) / 3,
    }
    used = {n for node in nodes for n in node.input} | {"w"}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4, 8])],
        [helper.make_tensor_value_info("y", 1, ["N", 4, 8])],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items() if n in used],
    )
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), tmp_path / "f.onnx")
    model = qtool.load_model(tmp_path / "f.onnx")
    quantized = qtool.quantize(model, [torch.rand(8, 4, 8) for _ in range(4)], accuracy="fast")
    found = quantized.export(tmp_path / "m.onnx", timing=0).coverage
    assert [(r.name, r.integer) for r in found.rows] == [
        ("first", True),
        ("middle", False),
        ("last", True),
    ]
    assert found.macs == 2 * 4 * 64 + count
    assert found.share == 2 * 4 * 64 / found.macs
    assert quantized.captured.file_bytes == (tmp_path / "f.onnx").stat().st_size
    file = onnx.load(tmp_path / "m.onnx")
    del file.metadata_props[:]
    onnx.save(file, tmp_path / "m.onnx")
    assert audit(tmp_path / "m.onnx").macs == found.macs
