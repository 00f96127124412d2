"""An RMSNorm that is written out is one operator, and one kernel of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtool.backends.onnx.export import write_float
from qtool.backends.onnxruntime.session import optimised_graph
from qtool.core import graph as G
from tests.passes.differential import Function, op, rewritten

SHAPE = (2, 5, 8)
PARTS = {"rms_norm", "pow", "mean", "add", "sqrt", "rsqrt", "reciprocal", "div", "mul"}


def _mean(x: Tensor, *axes: int) -> Tensor:
    return x.pow(2).mean(axes or (-1,), keepdim=True) + 1e-5


def _weight() -> nn.Module:
    made = nn.RMSNorm(SHAPE[-1])
    nn.init.uniform_(made.weight, 0.5, 2)
    return made


FORMS = {
    "rsqrt": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x))),
    "the other way round": lambda x, n: (torch.rsqrt(_mean(x)) * x) * n.weight,
    "divided": lambda x, n: x / torch.sqrt(_mean(x)) * n.weight,
    "reciprocal": lambda x, n: x * torch.sqrt(_mean(x)).reciprocal() * n.weight,
    "a product": lambda x, n: n.weight * (x * (1e-5 + (x * x).mean(2, True)).rsqrt()),
    "one and a weight": lambda x, n: (1.0 + n.weight) * (x * torch.rsqrt(_mean(x))),
}
OTHERS = {
    "without a weight": lambda x, _: x * torch.rsqrt(_mean(x)),
    "other axes": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x, 1, 2))),
    "of something else": lambda x, n: n.weight * (x * torch.rsqrt(_mean(x + 1))),
    "one weight for all": lambda x, n: n.weight[:1] * (x * torch.rsqrt(_mean(x))),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_operator(form: str) -> None:
    found = rewritten(Function(FORMS[form], _weight()), SHAPE)
    assert [o for o in found.ops() if o in PARTS] == ["rms_norm"]


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_stay(form: str) -> None:
    found = rewritten(Function(OTHERS[form], _weight()), SHAPE)
    assert "rms_norm" not in found.ops()


def test_what_another_node_reads_is_computed_once() -> None:
    def both(x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        normal = x * torch.rsqrt(_mean(x))
        return norm.weight * normal, normal

    assert "rms_norm" not in rewritten(Function(both, _weight()), SHAPE).ops()


def test_it_is_one_kernel_of_the_runtime(tmp_path: Path) -> None:
    found = rewritten(Function(FORMS["rsqrt"], _weight()), SHAPE)
    assert [op(n) for n in G.calls(found.graph.graph)] == ["rms_norm"]
    file = write_float(found.graph, tmp_path / "float.onnx")
    assert [n.op_type for n in optimised_graph(file).graph.node] == ["SimplifiedLayerNormalization"]
