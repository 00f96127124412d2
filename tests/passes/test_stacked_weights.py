"""Products with stacks of stored matrices become layers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.passes import CANONICAL, FOR_TARGETS
from qtool.planning.plan import Execution
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

PASSES = [*CANONICAL, FOR_TARGETS["stacked_weights"]]


class Stacks(nn.Module):
    """Stored tensors: four matrices, a bias for each, and one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 8, 6)), nn.Parameter(torch.randn(4, 6, 8))
        self.b, self.s = nn.Parameter(torch.randn(4, 1, 6)), nn.Parameter(torch.randn(1, 1, 6))


def _in_five(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 2, 2, -1, 8)


@named_cases(
    "function, count",
    ("bmm", lambda x, m: torch.bmm(x, m.w), 1),
    ("two", lambda x, m: x @ m.w @ m.v, 2),
    ("the stack first", lambda x, m: m.v @ x.mT, 1),
    ("with biases", lambda x, m: torch.baddbmm(m.b, x, m.w), 1),
    ("a bias for all", lambda x, m: torch.baddbmm(m.s, x, m.w), 0),
    ("scaled", lambda x, m: torch.baddbmm(m.b, x, m.w, alpha=2), 0),
    ("letters", lambda x, m: torch.einsum("btk,bkn->btn", x, m.w), 1),
    ("letters apart", lambda x, m: torch.einsum("btk,bkn->ntb", x, m.w), 1),
    ("letters of the stack first", lambda x, m: torch.einsum("bkn,btk->nbt", m.w, x), 1),
    ("read twice", lambda x, m: (x @ m.w) * (x.flip(0) @ m.w), 0),
    ("one for all", lambda x, m: x[:1] @ m.w, 0),
    ("stacks of stacks", lambda x, m: _in_five(x) @ m.w.view(2, 2, 8, 6), 0),
    ("some of the matrices", lambda x, m: x[:2] @ m.w[1:3], 1),
)
def test_stacks(function: Callable[..., torch.Tensor], count: int) -> None:
    model = Function(lambda x, m: function(x.transpose(0, 1), m).transpose(0, 1), Stacks())
    result = rewritten(model, (3, 4, 8), passes=PASSES)
    assert result.counts["stacked_weights"] == count
    assert bool(count) == ("linear" in result.ops())
    assert bool(count) != bool({"matmul", "bmm", "baddbmm", "einsum"} & set(result.ops()))


def test_one_input_for_all_matrices_is_one_layer() -> None:
    result = rewritten(Function(lambda x, m: x @ m.w, Stacks()), (5, 8), passes=CANONICAL)
    assert result.ops().count("linear") == 1


def test_small_matrices_beside_larger_layers_stay() -> None:
    model = Function(lambda x, m, big: big(x @ m.w), Stacks(), nn.Linear(6, 2000))
    assert not rewritten(model, (2, 4, 3, 8), passes=PASSES).counts["stacked_weights"]


@pytest.mark.parametrize(
    ("target", "mode", "suffix"),
    [
        *(("onnxruntime", m, ".onnx") for m in ("static", "weight-only-int4")),
        ("tflite", "static", ".tflite"),
    ],
)
def test_each_matrix_has_codes(target: str, mode: str, suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Function(lambda x, m: torch.relu(x @ m.w) @ m.v, Stacks()).eval()
    data, options = [torch.randn(8, 4, 3, 8)], {"mode": mode, "target": target}
    quantized = qtool.quantize(model, data, accuracy="fast", **options)
    checked = quantized.export(tmp_path / f"model{suffix}")
    assert checked.exactness is None or not checked.exactness.wrong
    layers = [d for d in quantized.plan.nodes if d.op == "linear"]
    assert [d.execution is not Execution.FLOAT for d in layers] == [True] * 8
