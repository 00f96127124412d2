"""Heads that share keys and values read them without copies, and see what they saw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.backends.onnx.export import write_float
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core import graph as G
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import run
from tests.passes.differential import Function, op, rewritten

BATCH, HEADS, GROUPS, TIME, WIDTH = 2, 6, 2, 5, 4
SHAPE = (BATCH, HEADS + 2 * GROUPS, TIME, WIDTH)
CAUSAL = torch.ones(TIME, TIME).tril().bool()


def _copied(x: Tensor, times: int = HEADS // GROUPS) -> Tensor:
    batch, groups, time, width = x.shape
    wide = x[:, :, None].expand(batch, groups, times, time, width)
    return wide.reshape(batch, groups * times, time, width)


def _attended(mask: Any, **options: Any) -> Callable[..., Tensor]:
    def forward(x: Tensor) -> Tensor:
        seen = mask(x) if callable(mask) else mask
        query, key, value = x.split((HEADS, GROUPS, GROUPS), 1)
        if not options.get("enable_gqa"):
            key, value = _copied(key), _copied(value)
        return F.scaled_dot_product_attention(query, key, value, seen, **options)

    return forward


FORMS = {
    "no mask": _attended(None),
    "a scale": _attended(None, scale=0.3),
    "of rank 2": _attended(CAUSAL),
    "of rank 3": _attended(CAUSAL[None]),
    "for each sample": _attended(lambda x: x[:, :1, :, :1] + CAUSAL.float()),
    "the same for all queries": _attended(torch.randn(1, 1, 1, TIME)),
    "torch's own": _attended(CAUSAL, enable_gqa=True),
}


def _other(x: Tensor) -> Tensor:
    """Keys repeated head by head and not group by group."""
    query, key, value = x.split((HEADS, GROUPS, GROUPS), 1)
    return F.scaled_dot_product_attention(query, key.repeat(1, 3, 1, 1), value.repeat(1, 3, 1, 1))


OTHERS = {
    "causal by name": _attended(None, is_causal=True),
    "a mask for each head": _attended(torch.randn(1, HEADS, TIME, TIME)),
    "repeated otherwise": _other,
}


def _keys(found: Any) -> list[int]:
    """Heads of the keys of each attention."""
    nodes = G.calls(found.graph.graph)
    return [G.shape(n.args[1])[1] for n in nodes if op(n) == "scaled_dot_product_attention"]


@pytest.mark.parametrize("form", FORMS)
def test_keys_are_not_copied(form: str) -> None:
    found = rewritten(Function(FORMS[form]), SHAPE)
    assert _keys(found) == [GROUPS]
    assert found.counts["grouped_queries"] == 1
    assert "expand" not in found.ops()


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_stay(form: str) -> None:
    found = rewritten(Function(OTHERS[form]), SHAPE)
    assert _keys(found) == [HEADS]
    assert not found.counts["grouped_queries"]


def test_layers_of_one_mask_repeat_it_once() -> None:
    def both(x: Tensor) -> Tensor:
        mask = x[:, :1, :, :1] + CAUSAL.float()
        query, key, value = x.split((HEADS, GROUPS, GROUPS), 1)
        for _ in range(2):
            query = F.scaled_dot_product_attention(query, _copied(key), _copied(value), mask)
        return query

    found = rewritten(Function(both), SHAPE)
    masks = [n for n in G.calls(found.graph.graph) if op(n) == "cat"]
    assert _keys(found) == [GROUPS, GROUPS]
    assert len(masks) == 1


def test_a_file_of_any_batch_and_length(tmp_path: Path) -> None:
    model, x = Function(FORMS["a scale"]).eval(), torch.randn(SHAPE)
    graph = capture_model(model, x, {"x": {0: "batch", 2: "time"}}).graph
    file = write_float(graph, tmp_path / "float.onnx")
    for batch, time in ((1, 1), (3, 7)):
        other = torch.randn(batch, SHAPE[1], time, WIDTH)
        (given,) = run(file.read_bytes(), (other,), True)
        torch.testing.assert_close(torch.from_numpy(given), model(other))
    made = [n.op_type for n in optimised_graph(file).graph.node]
    assert not {"Expand", "Where", "Shape"} & set(made)
