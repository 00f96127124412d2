"""An operator from outside, as a person would define it; tables that are as before afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnxscript
import torch
from onnxscript import opset18 as op
from onnxscript.values import Opset
from torch import nn

from qtool.backends.formats import FORMATS
from qtool.backends.onnx.operators import CUSTOM_FORMS, WRITERS
from qtool.backends.runtimes import RUNTIMES
from qtool.core import option_names
from qtool.core.observer_options import OPTIONS
from qtool.core.ops import OPS
from qtool.observers import OBSERVERS
from qtool.passes import CANONICAL, FOR_TARGETS
from qtool.planning.targets import TARGETS


@torch.library.custom_op("qtool_tests::gate", mutates_args=())
def gate(
    x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor, bias: torch.Tensor | None, slope: float
) -> torch.Tensor:
    """A leaky x weight^T + tanh(x) r^T + bias."""
    y = x @ weight.t() + torch.tanh(x) @ r.t()
    y = y if bias is None else y + bias
    return torch.where(y > 0, y, y * slope)


@gate.register_fake
def _shape(
    x: torch.Tensor, weight: torch.Tensor, r: torch.Tensor, bias: torch.Tensor | None, slope: float
) -> torch.Tensor:
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


@onnxscript.script(Opset("qtool_tests", 1), default_opset=op)
def Gate(x, weight, r, bias, slope: float):  # noqa: N802  # a script, called as its node
    product = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    other = op.MatMul(op.Tanh(x), op.Transpose(r, perm=[1, 0]))
    return op.LeakyRelu(op.Add(op.Add(product, other), bias), alpha=slope)


def write_gate(x: Any, weight: Any, r: Any, bias: Any, slope: float) -> Any:
    """The same as plain nodes."""
    product = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    other = op.MatMul(op.Tanh(x), op.Transpose(r, perm=[1, 0]))
    return op.LeakyRelu(op.Add(op.Add(product, other), bias), alpha=slope)


class GateNetwork(nn.Module):
    """Two layers in integers, and the gate between them: [batch, 8] -> [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.r = nn.Parameter(torch.randn(16, 16) / 4)
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.last(torch.ops.qtool_tests.gate(y, self.weight, self.r, self.bias, 0.25))


@contextmanager
def restored() -> Iterator[None]:
    """What is registered inside is gone afterwards."""
    tables: list[Any] = [OPS, WRITERS, CUSTOM_FORMS, OBSERVERS, TARGETS, FOR_TARGETS, CANONICAL]
    tables += [OPTIONS, RUNTIMES, FORMATS]
    tables += [option_names.FORMATS, option_names.MODEL_FORMATS, option_names.TARGET_MACHINES]
    before = [list(t) if isinstance(t, list) else dict(t) for t in tables]
    try:
        yield
    finally:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.extend(old) if isinstance(table, list) else table.update(old)
