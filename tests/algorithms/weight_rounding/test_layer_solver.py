"""The layer solver: the same weights from rows in memory and from moments; noise is not learned."""

import pytest
import torch
from torch import fx, nn

import qtool
from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.weight_rounding import layer_solver
from qtool.algorithms.weight_rounding.gptq import (
    Grid,
    InverseHessian,
    hessian,
    invert_hessian,
    round_columns,
)
from qtool.algorithms.weight_rounding.layer_solver import (
    LayerProblem,
    RowEvidence,
    Rows,
    best_solution,
    solve_layer,
)
from qtool.blockwise import layer_moments
from qtool.blockwise.layer_moments import HOLDOUT_EVERY, InputMoments, LayerMoments
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT4
from qtool.planning.plan import QuantPlan

OUT, IN = 8, 32
SHAPE = torch.Size((OUT, IN))


@pytest.fixture(scope="module")
def layer() -> tuple[fx.Node, QuantPlan]:
    captured = qtool.capture_model(nn.Linear(IN, OUT).eval(), torch.randn(4, IN))
    (node,) = (n for n in G.calls(captured.graph.graph) if is_product(n))
    return node, captured.plan()


def weights() -> tuple[torch.Tensor, QuantParams]:
    exact = torch.randn(1, OUT, IN, generator=torch.Generator().manual_seed(0))
    scale = exact[0].abs().amax(1) / 7
    return exact, QuantParams(INT4, scale, torch.zeros(OUT, dtype=torch.int32), axis=0)


def rows(exact: torch.Tensor, count: int, noise: float, seed: int) -> Rows:
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.eye(IN) + 0.3 * torch.randn(IN, IN, generator=torch.Generator().manual_seed(9))
    x = torch.randn(1, count, IN, generator=draw) @ mixing
    return x, x @ exact.mT + noise * torch.randn(1, count, OUT, generator=draw)


def error(weight: torch.Tensor, data: Rows) -> float:
    return float((data[1] - data[0] @ weight.reshape(1, OUT, IN).mT).square().sum())


def test_weights_do_not_follow_noise(layer: tuple[fx.Node, QuantPlan]) -> None:
    exact, params = weights()
    evidence = RowEvidence.of(exact, rows(exact, 128, 0.3, 1), rows(exact, 64, 0.3, 2))
    problem = LayerProblem(layer[0], exact, params, SHAPE, layer[1], evidence)
    best = best_solution(problem, {"gptq": solve_layer})
    assert best is not None
    name, solved = best
    assert name == "gptq"
    fresh = rows(exact, 1000, 0.0, 3)
    assert error(solved, fresh) < 0.7 * error(params.round_trip(exact[0]), fresh)


@pytest.mark.parametrize("columns", [IN, 12])  # one block, and three with a rest
def test_rows_and_moments_give_the_same_weights(
    layer: tuple[fx.Node, QuantPlan], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (layer_solver, layer_moments):
        monkeypatch.setattr(module, "COLUMNS", columns)
    node, plan = layer
    exact, params = weights()
    x, y = rows(exact, 400, 0.1, 1)
    holdout = torch.arange(400) % HOLDOUT_EVERY == HOLDOUT_EVERY - 1
    training, other = ((t[:, ~holdout], t[:, holdout]) for t in (x, y))
    evidence = RowEvidence.of(exact, (training[0], other[0]), (training[1], other[1]))
    moments = LayerMoments(node, InputMoments(1), exact, slice(0, OUT))
    moments.add(moments.inputs.add(node, x[0], 0), y[0], 0)
    known = (evidence, moments)
    problems = [LayerProblem(node, exact, params, SHAPE, plan, each) for each in known]
    one, two = map(solve_layer, problems)
    again = solve_layer(problems[1])  # evidence is read only
    assert torch.equal(two, again)
    step = params.scale[:, None]
    assert float(((one - two) / step).abs().max()) < 1.5  # sums in another order: a tie at most
    assert float(((one - two).abs() > step / 2).float().mean()) < 0.02


def test_nearest_codes_stay_where_they_are_better(layer: tuple[fx.Node, QuantPlan]) -> None:
    exact, params = weights()
    on_grid = params.round_trip(exact[0])[None]
    evidence = RowEvidence.of(on_grid, rows(on_grid, 64, 0.0, 1), rows(on_grid, 64, 0.0, 2))
    problem = LayerProblem(layer[0], on_grid, params, SHAPE, layer[1], evidence)
    assert best_solution(problem, {"gptq": solve_layer}) is None


def test_the_best_of_several_proposals_is_taken(layer: tuple[fx.Node, QuantPlan]) -> None:
    exact, params = weights()
    evidence = RowEvidence.of(exact, rows(exact, 128, 0.0, 1), rows(exact, 64, 0.0, 2))
    problem = LayerProblem(layer[0], exact, params, SHAPE, layer[1], evidence)
    solvers = {"zero": lambda p: torch.zeros(p.shape), "gptq": solve_layer, "none": lambda _: None}
    best = best_solution(problem, solvers)
    assert best is not None
    assert best[0] == "gptq"
    assert problem.error(best[1]) < problem.error(problem.nearest)


@pytest.mark.parametrize("columns", [IN, 12])
def test_no_solver_fills_the_zeros_of_a_pruned_weight(
    layer: tuple[fx.Node, QuantPlan], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_solver, "COLUMNS", columns)
    exact, params = weights()
    exact[:, :, ::2] = 0
    evidence = RowEvidence.of(exact, rows(exact, 128, 0.0, 1), rows(exact, 64, 0.0, 2))
    problem = LayerProblem(layer[0], exact, params, SHAPE, layer[1], evidence, exact == 0)
    assert not bool(solve_layer(problem)[:, ::2].any())
    near = {"other": lambda p: p.weight[0] + 1e-4}
    best = best_solution(problem, near)
    assert best is not None
    assert not bool(best[1][:, ::2].any())


@pytest.mark.parametrize("count", [IN // 2, 200])  # fewer and more rows than columns
def test_residual_moments_are_those_of_the_residuals(count: int) -> None:
    exact, _ = weights()
    training, other = rows(exact, count, 0.3, 1), rows(exact, 64, 0.3, 2)
    evidence = RowEvidence.of(exact, training, other)
    x, y = (t.double() for t in training)
    moment = (y - x @ exact.double().mT).mT @ x
    assert (evidence.squares is None) == (count < IN)
    size = float((y.abs().mT @ x.abs()).max())  # of what float32 sums, with an error of
    near = {"rtol": 0, "atol": count * 2.0**-24 * size}  # half a last bit per term, at most
    torch.testing.assert_close(evidence.residual_moment.double(), moment, **near)
    for outputs in (1, 100):  # the cheaper order of two products differs
        change = torch.eye(outputs, 3).expand(len(x), -1, -1)
        left, right = evidence.effect(change, 2)
        expected = change.double() @ x[:, :, 2:5].mT @ x[:, :, 5:]
        torch.testing.assert_close(left.double() @ right.double(), expected, **near)


def test_few_rows_damp_the_feedback() -> None:
    """Columns that 20 rows cannot tell apart take no error of each other."""
    torch.manual_seed(0)
    mix = torch.randn(96, 96) / 96**0.5
    weight, levels = torch.randn(1, 24, 96), (-127, 127)
    training, new = torch.randn(1, 20, 96) @ mix, torch.randn(1, 400, 96) @ mix
    evidence = RowEvidence.of(
        weight, (training, training @ weight.mT), (new[:, :0], new[:, :0, :24])
    )
    grid = Grid(torch.full_like(weight, 0.2), torch.zeros_like(weight), *levels)

    def error(inverse: InverseHessian) -> float:
        change = round_columns(weight, inverse, grid) - weight
        return float((new @ change.mT).square().mean())

    plain = invert_hessian(hessian(training))
    nearest = float((new @ (0.2 * (weight / 0.2).round() - weight).mT).square().mean())
    assert error(evidence.inverse(0, 96)) < error(plain)
    assert error(evidence.inverse(0, 96)) < 1.02 * nearest
