"""The check that every rewrite goes through: the graph against the user's own model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, GraphPass, run_passes
from tests.models.small import NETWORKS, Network, settle

TOLERANCE = 1e-4  # of the range of the output


class Function(nn.Module):
    """A plain function of tensors as a model; modules given are handed to it behind them."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.parts)


@dataclass(frozen=True)
class Rewritten:
    """What passes made of a model, already compared with it; `counts` by name of the pass."""

    graph: G.FloatGraph
    counts: Mapping[str, int]

    def ops(self) -> list[str]:
        """Operators in order: `conv`, `relu`, `batch_norm` ..."""
        return [op(n) for n in G.calls(self.graph.graph)]

    def node(self, name: str) -> Any:
        return next(n for n in self.graph.graph.nodes if G.name_of(n) == name)


def op(node: Any) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(packet.__name__)


def captured(model: nn.Module, *shapes: tuple[int, ...]) -> G.FloatGraph:
    """The graph of a model, before any pass."""
    return capture_module(settle(model), Batch(tuple(torch.randn(s) for s in shapes)))


@cache
def _network(name: str) -> tuple[nn.Module, G.FloatGraph]:
    network = NETWORKS[name]
    model = network.model()
    return model, capture_module(model, Batch(*network.example()))


def captured_network(name: str) -> tuple[nn.Module, G.FloatGraph]:
    """One of the small networks and its graph, before any pass; captured once, the graph copied."""
    model, graph = _network(name)
    return model, replace(graph, module=G.clone(graph.module))


def rewritten(
    model: nn.Module, *shapes: tuple[int, ...], passes: Sequence[GraphPass] = CANONICAL
) -> Rewritten:
    """Captures a model with random statistics, runs the passes, and compares with the model on
    batches of the captured size, of another and of one sample."""
    graph = captured(model, *shapes)
    counts = run_passes(graph.module, passes)
    network = Network(lambda: model, shapes)
    for size in (None, shapes[0][0] + 2, 1):
        args, kwargs = network.example(size)
        assert_same(model, graph.module, args, kwargs)
    return Rewritten(graph, counts)


def assert_same(
    model: nn.Module,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Both give tensors of the same shapes, in the same structure, at most `tolerance` of the
    range of each output apart."""
    with torch.no_grad():
        expected = model(*pytree.tree_map(torch.clone, args), **(kwargs or {}))
        actual = module(*pytree.tree_map(torch.clone, args), **(kwargs or {}))
    assert pytree.tree_structure(expected) == pytree.tree_structure(actual)
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        span = (a.max() - a.min()).item()
        assert (a - b).abs().max().item() <= tolerance * span


def written(model: nn.Module, batch: torch.Tensor, recipe: Any, path: Path) -> qtool.QuantizedFile:
    """The verified file of a model that is calibrated with one batch."""
    quantized = qtool.quantize(model, [batch], recipe=recipe, accuracy="fast")
    file = qtool.write_file(quantized, path, qtool.FileOptions(timing=0))
    assert file.passed
    return file


def assert_near(path: Path, model: nn.Module, batch: torch.Tensor) -> None:
    """The noise of a file in the runtime is below a thousandth of the signal."""
    (output,) = run(session(path), [batch.numpy()])
    wanted = model(batch).detach().numpy()
    assert np.square(output - wanted).sum() < 1e-3 * np.square(wanted).sum()
