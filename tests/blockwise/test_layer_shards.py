"""A piece of a layer whose inputs are too much alike goes to its nearest codes; no other failure
is taken for that."""

from __future__ import annotations

import pytest
import torch

import qtool
from qtool.algorithms.exclusive_layers import Layer
from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.weight_rounding.layer_solver import solve_layer
from qtool.blockwise.layer_moments import InputMoments, LayerMoments
from qtool.blockwise.layer_shards import BlockLayer, Shard, solve_shards
from qtool.core import graph as G
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8
from qtool.distributed import Ranks
from qtool.planning.plan import QuantPlan

WEIGHT = torch.tensor([[0.6, -1.4], [2.2, 0.1]])
PARAMS = QuantParams(INT8, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0)


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Shard:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("qtool.blockwise.layer_moments.invert_hessian", fails)
    graph = qtool.capture_model(torch.nn.Linear(2, 2).eval(), torch.ones(3, 2)).graph
    (node,) = [n for n in G.calls(graph.graph) if is_product(n)]
    moments = LayerMoments(node, InputMoments(1), WEIGHT[None], slice(0, 2))
    rows = moments.inputs.add(node, torch.ones(3, 2), 0)
    moments.add(rows, torch.ones(3, 2), 0)
    layer = Layer(node, WEIGHT, PARAMS, None, None)
    return Shard(BlockLayer(layer, 2, 0, 1, None, None), 0, slice(0, 2), moments)


def plan() -> QuantPlan:
    return qtool.capture_model(torch.nn.Linear(2, 2).eval(), torch.ones(3, 2)).plan()


def test_inputs_too_much_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, torch.linalg.LinAlgError())  # type: ignore[attr-defined]
    solved = solve_shards(Ranks(), [one], PARAMS, WEIGHT, plan(), {"gptq": solve_layer})
    assert solved.weight is None
    assert solved.singular


def test_another_failure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = failing(monkeypatch, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        solve_shards(Ranks(), [one], PARAMS, WEIGHT, plan(), {"gptq": solve_layer})
