"""Rows of ONNX operators, and the MACs they count."""

from pathlib import Path

import onnx
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from torch import nn

import qtool
from qtool.backends.onnx.mac_counts import MAC_FORMULAS, WEIGHT_INPUT, onnx_macs
from qtool.backends.onnx.operator_rows import MOVES, ON_CODES, ONNX_OPERATORS
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.integer_engine import operators as engine_moves
from qtool.core.ops import row_named

UNARY = [kind for kind, row in ONNX_OPERATORS.items() if row.unary]
SCHEMAS = {schema.name: schema for schema in runtime.get_all_operator_schema()}
PLAIN = [kind for kind, row in ONNX_OPERATORS.items() if row.plain]


@pytest.mark.parametrize("kind", UNARY)
def test_attributes_are_those_of_onnx_in_the_order_of_torch(kind: str) -> None:
    row, schema = ONNX_OPERATORS[kind], onnx.defs.get_schema(kind)
    assert set(row.attributes) == set(schema.attributes)
    for name, default in row.attributes.items():
        assert schema.attributes[name].default_value.f == pytest.approx(default)
    tensor, *numbers = row_named(row.key).targets[0]._schema.arguments
    assert str(tensor.type) == "Tensor"
    defaults = [a.default_value for a in numbers[: len(row.attributes)]]
    assert defaults == list(row.attributes.values())


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_operator_takes_codes_and_parameters_in_this_order(kind: str) -> None:
    row = ONNX_OPERATORS[kind]
    schema = SCHEMAS[row.on_codes]
    assert set(row.attributes) == set(schema.attributes)
    tensors = ["X"] if row.codes == 1 else ["A", "B"]
    out = "Y" if row.codes == 1 else "C"
    expected = [f"{t}{part}" for t in tensors for part in ("", "_scale", "_zero_point")]
    assert [i.name for i in schema.inputs] == [*expected, f"{out}_scale", f"{out}_zero_point"]


def test_the_runtime_has_the_operators_on_codes() -> None:
    assert set(ON_CODES) <= set(SCHEMAS)


def test_moves_are_those_that_the_engine_makes() -> None:
    assert set(MOVES) == set(engine_moves.MOVES)


CASES = {  # operator: sizes of inputs, size of the result, attributes, MACs by hand
    "Conv": ([(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    "Conv, two groups": ([(1, 4, 8, 8), (4, 2, 3, 3)], (1, 4, 6, 6), {"group": 2}, 4 * 36 * 18),
    "ConvInteger": ([(1, 3, 8), (4, 3, 3)], (1, 4, 6), {}, 4 * 6 * 9),
    "QLinearConv": ([(1, 3, 8), (), (), (4, 3, 3)], (1, 4, 6), {}, 4 * 6 * 9),
    "ConvTranspose": ([(1, 3, 8, 8), (3, 4, 2, 2)], None, {}, 64 * 3 * 4 * 4),
    "Gemm": ([(1, 5), (5, 6)], (1, 6), {}, 30),
    "Gemm, transposed": ([(1, 5), (6, 5)], (1, 6), {"transB": 1}, 30),
    "QGemm": ([(1, 5), (), (), (6, 5)], None, {"transB": 1}, 30),
    "Gemm, both transposed": ([(5, 1), (6, 5)], (1, 6), {"transA": 1, "transB": 1}, 30),
    "MatMul": ([(1, 7, 5), (5, 6)], (1, 7, 6), {}, 7 * 30),
    "MatMul, of activations": ([(1, 2, 7, 5), (1, 2, 5, 7)], (1, 2, 7, 7), {}, 2 * 49 * 5),
    "MatMul, by a vector": ([(1, 5), (5,)], (1,), {}, 5),
    "MatMulInteger": ([(1, 7, 5), (5, 6)], (1, 7, 6), {}, 7 * 30),
    "MatMulIntegerToFloat": ([(1, 7, 5), (5, 6)], None, {}, 7 * 30),
    "DynamicQuantizeMatMul": ([(1, 7, 5), (5, 6)], None, {}, 7 * 30),
    "QLinearMatMul": ([(1, 5), (), (), (5, 6)], (1, 6), {}, 30),
    "MatMulNBits": ([(1, 7, 5), (6, 1, 3)], None, {"K": 5, "N": 6}, 7 * 30),
    "QMoE": (
        [(1, 7, 8), (7, 4), (4, 12, 4), (), (), (4, 8, 3)],
        None,
        {"k": 2, "expert_weight_bits": 4},
        7 * 2 * (12 * 8 + 8 * 6),
    ),
    "Einsum": ([(1, 7, 5), (5, 6)], None, {"equation": "btk, kn -> btn"}, 7 * 30),
    "Einsum, with an ellipsis": (
        [(2, 7, 5), (5, 6)],
        None,
        {"equation": "...ij,jk->...ik"},
        2 * 7 * 30,
    ),
    "Attention, with a cache": (
        [(2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6), None, (2, 4, 9, 8), (2, 4, 9, 6)],
        None,
        {},
        2 * 4 * 3 * 14 * (8 + 6),
    ),
    "Attention, heads in one dimension": (
        [(2, 3, 32), (2, 5, 16), (2, 5, 12)],
        None,
        {"q_num_heads": 4, "kv_num_heads": 2},
        2 * 4 * 3 * 5 * (8 + 6),
    ),
    "GroupQueryAttention": (
        [(2, 3, 32), (2, 3, 16), (2, 3, 16), (2, 2, 9, 8)],
        None,
        {"num_heads": 4, "kv_num_heads": 2},
        2 * 2 * 4 * 3 * 12 * 8,
    ),
    "GroupQueryAttention, packed": (
        [(2, 3, 64), None, None],
        None,
        {"num_heads": 4, "kv_num_heads": 2},
        2 * 2 * 4 * 3 * 3 * 8,
    ),
    "DeformConv": ([(1, 3, 8, 8), (4, 3, 3, 3), (1, 18, 6, 6)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    "FusedConv": ([(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    "NhwcFusedConv": ([(1, 3, 8), (4, 3, 3)], (1, 4, 6), {}, 4 * 6 * 9),
    "FusedMatMul": ([(2, 7, 5), (2, 6, 5)], (2, 7, 6), {"transB": 1}, 2 * 7 * 30),
    "FusedGemm": ([(1, 5), (5, 6)], (1, 6), {}, 30),
    "LSTM": ([(7, 1, 5), (2, 24, 5), (2, 24, 6)], None, {}, 7 * 2 * 24 * 11),
    "DynamicQuantizeLSTM": ([(7, 1, 5), (2, 5, 24), (2, 6, 24)], None, {}, 7 * 2 * 24 * 11),
    "GRU": ([(7, 1, 5), (1, 18, 5), (1, 18, 6)], None, {}, 7 * 18 * 11),
    "RNN": ([(7, 1, 5), (1, 6, 5), (1, 6, 6)], None, {}, 7 * 6 * 11),
}


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name: str) -> None:
    inputs, result, attributes, count = CASES[name]
    assert onnx_macs(name.partition(",")[0], inputs, result, attributes) == count


def test_every_operator_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(MAC_FORMULAS)
    assert set(WEIGHT_INPUT) <= set(MAC_FORMULAS)


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "Einsum", "LSTM", "Attention", "STFT"])
def test_what_is_not_known_has_no_count(kind: str) -> None:
    assert onnx_macs(kind, [None, None, None], None, {}) is None
    assert onnx_macs(kind, [], (1,), {}) is None


@pytest.mark.parametrize(
    ("domain", "kind", "count"),
    [
        ("", "Relu", 0),
        ("com.microsoft", "BiasGelu", 0),
        ("com.microsoft", "QLinearAdd", 0),
        ("com.microsoft", "QLinearConvTranspose", None),
        ("com.microsoft", "GemmFastGelu", None),
        ("com.microsoft", "Attention", None),
        ("com.example", "Relu", None),
    ],
)
def test_operators_without_a_formula(domain: str, kind: str, count: int | None) -> None:
    assert onnx_macs(kind, [(2, 3), (3, 4), (4,)], (2, 3), {}, domain) == count


class Steps(nn.Module):
    """A recurrent layer or a step of one, and a layer behind it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.part = getattr(nn, kind)(5, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.part(x)
        return self.last(found[0] if isinstance(found, tuple) else found)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNNCell"])
def test_plan_file_and_foreign_file_agree(kind: str, tmp_path: Path) -> None:
    """A foreign file is one that says nothing of itself."""
    sizes = (2, 5) if kind.endswith("Cell") else (3, 2, 5)  # steps first
    torch.manual_seed(0)
    model = qtool.quantize(
        Steps(kind).eval(), [torch.rand(sizes) for _ in range(2)], accuracy="fast"
    )
    path = tmp_path / "m.onnx"
    model.export(path)
    planned = sum(d.macs for d in model.plan.nodes)
    assert audit(path).share > 0
    assert (audit(path).share == 1) is kind.endswith("Cell")  # a step is two linear layers
    assert audit(path).macs == planned
    file = onnx.load(path)
    del file.metadata_props[:]
    onnx.save(file, path)
    assert audit(path).macs == planned
