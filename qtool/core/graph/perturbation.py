"""How far the rounding of float32 goes in a graph: of each value, not of the largest.

Every float that a step gives is moved at random by about its last bit, again and again, and what
that does to a value behind is what float32 leaves open there: next to a pole, behind a difference
of two near numbers or a norm of equal ones it is much, elsewhere next to nothing. A runtime may
also compute a step by way of larger numbers than torch does, exp(x) - 1 for one: such a step is
moved by the last bit of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.graph.float_tolerance import NOISE_FACTOR, TOLERANCE

aten = torch.ops.aten
DRAWS = 8

Inside = Callable[[fx.Node, torch.Tensor], torch.Tensor | float]


def _one(node: fx.Node, x: torch.Tensor) -> float:
    """By way of numbers near 1."""
    return 1.0


def _scaled(node: fx.Node, x: torch.Tensor) -> float:
    """alpha x (exp(x) - 1), and selu's 1.76."""
    numbers = [a for a in (*node.args[1:], *node.kwargs.values()) if isinstance(a, int | float)]
    return max([1.8, *(abs(float(n)) for n in numbers)])


def _itself(node: fx.Node, x: torch.Tensor) -> torch.Tensor:
    """x (1 + erf(x)), which is next to nothing of a negative x."""
    return x.abs()


INTERMEDIATE_SIZES: Mapping[Any, Inside] = {
    aten.elu.default: _scaled,
    aten.celu.default: _scaled,
    aten.selu.default: _scaled,
    aten.expm1.default: _one,
    aten.log1p.default: _one,
    aten.sinh.default: _one,
    aten.asinh.default: _one,
    aten.atanh.default: _one,
    aten.softplus.default: _one,
    aten.sigmoid.default: _one,  # a polynomial between bounds, and 0 beyond them
    aten.silu.default: _itself,
    aten.gelu.default: _itself,
}
"""What a kernel may go through on the way, where that is larger than the result."""


_GATED = ("qtool.gru.default", "qtool.lstm.default", "qtool.rnn.default")  # sigmoids inside


class PerturbedInterpreter(fx.Interpreter):
    """Runs a graph with each float moved by about its last bit, each run otherwise.

    Attributes:
        still: runs it as it is.
        reach: so many times as far.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.exact, self.amplitude = False, 1.0
        self.generator = torch.Generator().manual_seed(0)

    def outputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Of one call, flat."""
        places = sum(n.op == "placeholder" for n in self.graph.nodes)
        order = _keywords(self.graph) or list(kwargs)
        leaves = pytree.tree_leaves((tuple(args), {k: kwargs[k] for k in order}))
        if len(leaves) != places:
            leaves = [x for x in leaves if x is not None]
        with torch.no_grad():
            return pytree.tree_leaves(self.run(*leaves, enable_io_processing=False))

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self.exact or n.op == "output":
            return result
        inside: torch.Tensor | float = 0.0
        if n.op == "call_function" and n.target in INTERMEDIATE_SIZES:
            inside = INTERMEDIATE_SIZES[n.target](n, self.fetch_args_kwargs_from_env(n)[0][0])
        elif str(n.target) in _GATED:
            inside = 1.0
        return pytree.tree_map(lambda x: self._perturb(x, inside), result)

    def _perturb(self, x: Any, inside: torch.Tensor | float) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        away = torch.rand(x.shape, generator=self.generator, dtype=torch.float32) * 2 - 1
        bits = self.amplitude * torch.finfo(x.dtype).eps * away.to(x.device)
        return (x.detach() * (1 + 2 * bits) + bits / 2 * inside).to(x.dtype)


def _keywords(graph: fx.Graph) -> list[str]:
    """The arguments that a graph takes by name, in the order that it was captured with."""
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None or info.in_spec.num_children != 2:
        return []
    return list(info.in_spec.child(1).context or ())


def within_tolerance(expected: torch.Tensor, actual: torch.Tensor, spread: torch.Tensor) -> bool:
    """Whether each value is as near as the range of all allows, or its own conditioning.

    Args:
        open_: how far each value moves; an integer (a position) where floats are moved
            as far as they are allowed to be off.
    """
    floats = expected.is_floating_point()
    if expected.shape != actual.shape or floats != actual.is_floating_point():
        return False
    a, b = expected.double(), actual.double()
    finite = a[a.isfinite()]
    span = float(finite.abs().max()) if floats and finite.numel() else 0.0
    off = (a - b).abs().where(a != b, 0.0).where(~(a.isnan() & b.isnan()), 0.0)
    moves = spread.double().nan_to_num(nan=0.0, posinf=0.0)
    return bool((off <= TOLERANCE * span + NOISE_FACTOR * moves).all())
