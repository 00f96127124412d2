"""Targets as tables: complete, consistent, found by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.ops import OPS
from qtool.passes import canonicalize  # noqa: F401 - registers qtool's operators
from qtool.planning.targets import DEFAULT, TARGETS, Target, target
from tests.passes.differential import Function, rewritten


def test_by_name() -> None:
    assert target(DEFAULT) is TARGETS[DEFAULT]
    with pytest.raises(PlanError, match=r"unknown target 'toaster'; there are: .*onnxruntime"):
        target("toaster")


@pytest.mark.parametrize("each", TARGETS.values(), ids=lambda t: t.name)
def test_tables_are_consistent(each: Target) -> None:
    keys = {row.key for row in OPS.values()}
    assert each.kernels.keys() | each.no_kernel.keys() <= keys
    assert not each.kernels.keys() & each.no_kernel.keys(), "a kernel, or a reason for none"
    assert each.file.passthrough_on_codes <= each.kernels.keys()
    assert each.description
    assert all(reason.strip() for reason in each.no_kernel.values())


def _divided(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 3, 2, ceil_mode=True, divisor_override=3)


@pytest.mark.parametrize(
    ("key", "model", "reason"),
    [
        pytest.param("conv", nn.Conv2d(3, 3, 1), None, id="conv"),
        pytest.param("conv", nn.Conv2d(3, 3, 1).double(), "not float32", id="conv in float64"),
        pytest.param(
            "conv",
            Function(lambda x: F.conv2d(x, x[:1, :, :1, :1])),
            "its weight is computed at run time",
            id="computed weight",
        ),
        pytest.param(
            "conv",
            Function(lambda x, c: F.conv2d(x, c.weight, x.mean((0, 2, 3))), nn.Conv2d(3, 3, 1)),
            "its bias is computed at run time",
            id="computed bias",
        ),
        pytest.param("add", Function(lambda x: x + x), None, id="sum"),
        pytest.param("add", Function(lambda x: x + 2), "a scalar", id="sum with a number"),
        pytest.param("mul", Function(lambda x: x * 2.0), "a scalar", id="product with a number"),
        pytest.param(
            "add", Function(lambda x: x + torch.arange(4)), "int64, not float", id="integers"
        ),
        pytest.param("average_pool", nn.AvgPool2d(2), None, id="pool"),
        pytest.param("average_pool", Function(_divided), "divisor", id="pool, other divisor"),
        pytest.param("pad", nn.ZeroPad2d(1), None, id="zeros"),
        pytest.param("pad", nn.ConstantPad2d(1, 1.0), "other than zero", id="ones"),
        pytest.param(
            "pass", Function(lambda x: x.index_select(1, torch.tensor([1, 0]))), None, id="gather"
        ),
        pytest.param(
            "pass", Function(lambda x: x.double()[:, 1:]), "not float32", id="moved float64"
        ),
    ],
)
def test_refusals_of_onnxruntime(key: str, model: nn.Module, reason: str | None) -> None:
    if isinstance(model, nn.Conv2d) and model.weight.dtype is torch.float64:
        model = nn.Sequential(Function(lambda x: x.double()), model)
    graph = rewritten(model, (2, 3, 4, 4)).graph.graph
    nodes = [n for n in G.calls(graph) if n.target in OPS and OPS[n.target].key == key]
    found = target("onnxruntime").kernels[key].refuse(nodes[-1])
    assert found is None if reason is None else reason in str(found)
