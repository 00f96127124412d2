"""Products with stored matrices are linear layers, whatever way they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core import graph as G
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_constants import fold_constants
from qtool.planning.plan import Execution
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

FORMS = [canonicalize, fold_constants]


@named_cases(
    "function, ops",
    ("addmm", lambda x, m: torch.addmm(m.bias, x, m.weight), ["linear"]),
    ("mm", lambda x, m: torch.mm(x, m.weight), ["linear"]),
    ("matmul", lambda x, m: x @ m.weight, ["linear"]),
    ("a scaled product", lambda x, m: torch.addmm(m.bias, x, m.weight, alpha=2), ["addmm"]),
    ("a computed sum", lambda x, m: torch.addmm(x[:, :1], x, m.weight), ["slice", "addmm"]),
    ("transposed", lambda x, m: x @ m.weight.T, ["linear"]),
    ("made of it", lambda x, m: x @ (m.weight[:, :4] * 2), ["linear"]),
    (
        "from the left",
        lambda x, m: m.weight @ x.t(),
        ["transpose", "transpose", "linear", "transpose"],
    ),
    ("a vector", lambda x, m: x @ m.bias, ["linear", "squeeze"]),
    ("a layer with a vector", lambda x, m: F.linear(x, m.bias), ["linear", "squeeze"]),
    (
        "of several dimensions",
        lambda x, m: x[:, None] @ m.bias,
        ["unsqueeze", "reshape", "linear", "reshape", "squeeze"],
    ),
    (
        "data for the vector",
        lambda x, m: F.linear(m.weight, x[0]),
        ["select", "reshape", "linear", "reshape"],
    ),
    ("data for both", lambda x, m: F.linear(x, x[0]), ["select", "matmul"]),
)
def test_products_with_a_stored_matrix(
    function: Callable[..., torch.Tensor], ops: list[str]
) -> None:
    found = rewritten(Function(function, nn.Linear(5, 5)), (3, 5)).ops()
    assert found == ops


def test_a_bias_of_one_number_is_one_for_each_output() -> None:
    one = nn.Parameter(torch.randn(1))
    weights = nn.ParameterList([nn.Parameter(torch.randn(4, 5)), one])
    for function in (
        lambda x, m: nn.functional.linear(x, m[0], m[1]),
        lambda x, m: nn.functional.linear(x, m[0], m[1][0]),
        lambda x, m: torch.addmm(m[1], x, m[0].T),
        lambda x, m: torch.addmm(m[1][None], x, m[0].T),
    ):
        found = rewritten(Function(function, weights), (3, 5), passes=FORMS).graph
        (layer,) = G.calls(found.graph)
        assert layer.target is torch.ops.aten.linear.default
        assert G.shape(layer.args[2]) == (4,)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0)])
def test_a_layer_of_no_features_gives_its_bias(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(1, 5, bias)
    layer.weight = nn.Parameter(torch.zeros(5, 0))
    found = rewritten(layer, shape, passes=FORMS)
    assert "linear" not in found.ops()


W = {"matrix": (6, 5), "heads": (6, 2, 4), "joined": (2, 3, 5), "deep": (2, 6, 5)}


@named_cases(
    "equation, weight, ops",
    ("a linear layer", "bti,io->bto", "matrix", ["linear"]),
    ("with an ellipsis", "...i,io->...o", "matrix", ["linear"]),
    ("to heads", "bti,ihd->bhtd", "heads", ["linear", "reshape", "permute"]),
    ("the weight first", "io,bti->obt", "matrix", ["linear", "permute"]),
    ("two letters summed", "bti,tio->bo", "deep", ["flatten", "linear"]),
    ("a matrix for each step", "bti,tio->bto", "deep", ["einsum"]),
    ("a letter of one summed", "bti,io->bt", "matrix", ["einsum"]),
    ("an outer product", "bti,jo->btijo", "matrix", ["einsum"]),
)
def test_einsum_with_a_stored_tensor(equation: str, weight: str, ops: list[str]) -> None:
    stored = nn.ParameterList([nn.Parameter(torch.randn(W[weight]))])

    def function(x: torch.Tensor, given: nn.ParameterList) -> torch.Tensor:
        pair = (given[0], x) if equation.startswith("io") else (x, given[0])
        return torch.einsum(equation, *pair)

    assert rewritten(Function(function, stored), (3, 2, 6), passes=FORMS).ops() == ops


@pytest.mark.parametrize(
    "equation", [pytest.param("bti,btj->bij", id="of two activations"), "bti->ibt", "bti,io"]
)
def test_other_sums_are_left_to_the_exporter(equation: str) -> None:
    stored = nn.ParameterList([nn.Parameter(torch.randn(6, 5))])

    def function(x: torch.Tensor, given: nn.ParameterList) -> torch.Tensor:
        operands = {"bti,btj->bij": [x, x], "bti->ibt": [x], "bti,io": [x, given[0]]}
        return torch.einsum(equation, *operands[equation])

    found = rewritten(Function(function, stored), (3, 2, 6), passes=FORMS).ops()
    assert "linear" not in found


class _Left(nn.Module):
    """A stored matrix as the first operand, in the forms of torch and of ONNX's Gemm."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.randn(6, 8) / 3)
        self.bias = nn.Parameter(torch.randn(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forms = {
            "matmul": lambda: self.weight @ x.mT,
            "vector": lambda: torch.matmul(self.weight, x[0]),
            "linear": lambda: F.linear(self.weight, x),
            "addmm": lambda: torch.addmm(self.bias, self.weight, x.t()),
            "rows": lambda: F.linear(x, self.weight).t(),
        }
        return forms[self.form]()


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only"])
@pytest.mark.parametrize("form", ["matmul", "deep", "vector", "linear", "addmm", "rows"])
def test_a_stored_matrix_as_first_operand_is_a_layer(form: str, mode: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(*([9, 5, 8] if form == "deep" else [9, 8]))
    model = _Left("matmul" if form == "deep" else form).eval()
    quantized = qtool.quantize(model, [x], mode=mode)
    result = quantized.verify()
    assert result.passed
    layers = [d for d in quantized.plan.nodes if d.op == "linear"]
    assert [d.execution for d in layers] != [Execution.FLOAT] * len(layers)
    if mode == "static":
        assert result.coverage.share == 1
    expected = model(x)
    assert (quantized(x) - expected).abs().max() < 0.05 * expected.abs().max()
