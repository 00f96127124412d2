"""Forms of products, look-ups and medians."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import torch_ops
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_constants import fold_constants
from qtool.planning.plan import Execution
from tests.named_cases import named_cases
from tests.passes.differential import Function, assert_same, rewritten

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


FORMS_OF_LEFT = ["matmul", "deep", "vector", "linear", "addmm", "rows"]


@pytest.mark.parametrize(
    ("form", "mode"),
    [  # what becomes of a form is one layer in all modes
        *((form, "static") for form in FORMS_OF_LEFT),
        *(("matmul", "dynamic"), ("rows", "weight-only")),
    ],
)
def test_a_stored_matrix_as_first_operand_is_a_layer(form: str, mode: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(*([9, 5, 8] if form == "deep" else [9, 8]))
    model = _Left("matmul" if form == "deep" else form).eval()
    quantized = qtool.quantize(model, [x], mode=mode, accuracy="fast")
    result = quantized.verify()
    assert result.passed
    layers = [d for d in quantized.plan.nodes if d.op == "linear"]
    assert [d.execution for d in layers] != [Execution.FLOAT] * len(layers)
    if mode == "static":
        assert result.coverage.share == 1
    expected = model(x)
    assert (quantized(x) - expected).abs().max() < 0.05 * expected.abs().max()


IDS = torch.tensor([[3, 3, 0, 7], [1, 2, 3, 999], [5, 5, 5, 5]])
BEGINS = torch.tensor([0, 4, 4, 9])  # the second bag is empty
WEIGHTS = torch.tensor([[1.0, -2.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0], [3.0, 0.25, 1.0, -1.0]])
Given = tuple[torch.Tensor, ...]


class Bag(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(1000, 80, **options)

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.bag(ids, offsets, weights)


class Weighted(Bag):
    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.bag(ids, None, weights)


FLAT, LAST = IDS.flatten(), torch.tensor([0, 4, 4, 12])
CASES: dict[str, tuple[dict[str, Any], Given]] = {
    **{mode: ({"mode": mode}, (IDS,)) for mode in ("sum", "mean", "max")},
    "weights": ({"mode": "sum"}, (IDS, WEIGHTS)),
    "sum of offsets": ({"mode": "sum"}, (FLAT, BEGINS)),
    "mean of offsets": ({"mode": "mean"}, (FLAT, BEGINS)),
    "weights of offsets": ({"mode": "sum"}, (FLAT, BEGINS, WEIGHTS.flatten())),
    "sum with the last": ({"mode": "sum", "include_last_offset": True}, (FLAT, LAST)),
    "mean with the last": ({"mode": "mean", "include_last_offset": True}, (FLAT, LAST)),
}
LEFT = {
    "maximum of offsets": ({"mode": "max"}, (FLAT, BEGINS)),
    "a row that counts for nothing": ({"mode": "sum", "padding_idx": 3}, (IDS,)),
}


def canonical(options: dict[str, Any], given: Given) -> tuple[nn.Module, G.FloatGraph]:
    weighted = given[-1] is WEIGHTS
    model = (Weighted if weighted else Bag)(**options).eval()
    graph = capture_module(model, Batch(given), {})
    run_passes(graph.module, CANONICAL)
    return model, graph


@pytest.mark.parametrize(("options", "given"), CASES.values(), ids=CASES)
def test_a_bag_is_rows_and_a_reduction(options: dict[str, Any], given: Given) -> None:
    model, graph = canonical(options, given)
    targets = [n.target for n in G.calls(graph.graph)]
    assert torch_ops.embedding in targets
    assert not [t for t in targets if "embedding_bag" in str(t)]
    assert_same(model, graph.module, given)
    assert_same(model, graph.module, (given[0].flip(0), *given[1:]))


def test_offsets_are_no_constants() -> None:
    model, graph = canonical({"mode": "mean"}, (FLAT, BEGINS))
    assert_same(model, graph.module, (FLAT.flip(0), torch.tensor([0, 1, 11, 12])))


@pytest.mark.parametrize(("options", "given"), LEFT.values(), ids=LEFT)
def test_others_are_left(options: dict[str, Any], given: Given) -> None:
    model, graph = canonical(options, given)
    assert [t for t in map(str, (n.target for n in G.calls(graph.graph))) if "embedding_bag" in t]
    assert_same(model, graph.module, given)


@pytest.mark.parametrize("name", ["sum", "mean of offsets"])
def test_the_table_is_stored_as_int8(name: str, tmp_path: Path) -> None:
    options, given = CASES[name]
    model = qtool.quantize(Bag(**options).eval(), [given], dynamic={}, accuracy="fast")
    found = model.export(tmp_path / "bag.onnx")
    assert [d.execution.value for d in model.plan.nodes if d.op == "embedding"] == ["weights"]
    assert (tmp_path / "bag.onnx").stat().st_size < 1000 * 80 * 2
    assert found.exactness.exact


Of = Callable[[torch.Tensor], torch.Tensor]


def behind(function: Of) -> nn.Module:
    """A function of what a linear layer gives."""
    torch.manual_seed(0)
    return Function(lambda x, layer: function(layer(x)), nn.Linear(6, 5)).eval()


FUNCTIONS: dict[str, Of] = {
    "median": lambda x: x - x.median(),
    "median of the samples": lambda x: x - x.median(0, keepdim=True).values,
    "kthvalue of the samples": lambda x: x - x.kthvalue(2, 0).values,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_medians_run_with_other_batches(function: Of, tmp_path: Path) -> None:
    model = behind(function)
    drawn = [torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) for n in (16, 9, 4)]
    quantized = qtool.quantize(model, drawn[:1], accuracy="fast")
    quantized.export(tmp_path / "model.onnx", verify=False)
    for x in drawn:
        (found,) = run(session(tmp_path / "model.onnx"), [x.numpy()])
        planned = quantized(x).detach()
        assert torch.allclose(torch.from_numpy(found), planned, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("what", [torch.remainder, torch.fmod, torch.floor_divide])
def test_a_remainder_by_values_near_zero_is_named(what: Callable[..., torch.Tensor]) -> None:
    model, data = behind(lambda x: what(x[:, :2], x[:, 2:4])), torch.randn(16, 6)
    assert qtool.quantize(model, [data], accuracy="fast").fidelity.near_zero_divisions
