"""The error of float32 rounding in a graph, per value, by random perturbation.

Every float result is perturbed at random by about its last bit, in several runs. The change of a
value downstream is its rounding error in float32: large next to a pole, behind a difference of near
numbers or a norm of equal ones, tiny elsewhere. A runtime may compute an operator through larger
intermediate numbers than torch does, exp(x) - 1 for instance: its result is perturbed by the last
bit of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.graph.float_tolerance import NOISE_FACTOR, TOLERANCE

aten = torch.ops.aten
DRAWS = 8  # perturbed runs

Size = Callable[[fx.Node, torch.Tensor], torch.Tensor | float]
"""(node, its first argument) -> size of the intermediate numbers."""


def _one(node: fx.Node, x: torch.Tensor) -> float:
    """The intermediate numbers are near 1."""
    return 1.0


def _elu_scale(node: fx.Node, x: torch.Tensor) -> float:
    """alpha x (exp(x) - 1); selu has 1.76."""
    numbers = [a for a in (*node.args[1:], *node.kwargs.values()) if isinstance(a, int | float)]
    return max([1.8, *(abs(float(n)) for n in numbers)])


def _input(node: fx.Node, x: torch.Tensor) -> torch.Tensor:
    """x (1 + erf(x)), which is much smaller than a negative x."""
    return x.abs()


INTERMEDIATE_SIZES: Mapping[Any, Size] = {
    aten.elu.default: _elu_scale,
    aten.celu.default: _elu_scale,
    aten.selu.default: _elu_scale,
    aten.expm1.default: _one,
    aten.log1p.default: _one,
    aten.sinh.default: _one,
    aten.asinh.default: _one,
    aten.atanh.default: _one,
    aten.softplus.default: _one,
    aten.sigmoid.default: _one,  # a polynomial between bounds, and 0 beyond them
    aten.silu.default: _input,
    aten.gelu.default: _input,
}
"""Operator -> size of a kernel's intermediate numbers, if larger than the result."""

_GATED = ("qtool.gru.default", "qtool.lstm.default", "qtool.rnn.default")  # sigmoids inside


class PerturbedInterpreter(fx.Interpreter):
    """Runs a graph with each float result perturbed by about its last bit, differently in each run.

    Attributes:
        exact: runs without perturbation.
        amplitude: factor on the perturbation.
        known: node -> returns its result, which is perturbed in place of a computed one.
        needed: nodes that are run, see `run_only`; None: all.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.exact, self.amplitude = False, 1.0
        self.generator = torch.Generator().manual_seed(0)
        self.known: Mapping[fx.Node, Callable[[], Any]] = {}
        self.needed: Set[fx.Node] | None = None

    def run_only(
        self, wanted: Iterable[fx.Node], known: Mapping[fx.Node, Callable[[], Any]]
    ) -> None:
        """Leave out in further runs what these nodes do not depend on; results that are known are
        not computed."""
        self.known, waiting = known, list(wanted)
        needed = {n for n in self.graph.nodes if n.op in ("placeholder", "output")}
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += [] if node in known else node.all_input_nodes
        self.needed = needed

    def outputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of one call, flat."""
        n_inputs = sum(n.op == "placeholder" for n in self.graph.nodes)
        order = _keywords(self.graph) or list(kwargs)
        leaves = pytree.tree_leaves((tuple(args), {k: kwargs[k] for k in order}))
        if len(leaves) != n_inputs:
            leaves = [x for x in leaves if x is not None]
        with torch.no_grad():
            return pytree.tree_leaves(self.run(*leaves, enable_io_processing=False))

    def run_node(self, n: fx.Node) -> Any:
        if self.needed is not None and n not in self.needed:
            return None
        result = self.known[n]() if n in self.known else super().run_node(n)
        if self.exact or n.op == "output":
            return result
        if isinstance(result, torch.Tensor) and result.is_complex():
            return self._perturb_spectrum(result, -2 if n.target is aten.stft.default else -1)
        size: torch.Tensor | float = 0.0
        if n.op == "call_function" and n.target in INTERMEDIATE_SIZES:
            size = INTERMEDIATE_SIZES[n.target](n, self.fetch_args_kwargs_from_env(n)[0][0])
        elif str(n.target) in _GATED:
            size = 1.0
        return pytree.tree_map(lambda x: self._perturb(x, size), result)

    def _perturb_spectrum(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Perturb by the last bit of the largest bin of each frame, of which every bin is a sum:
        rounding errors of the terms add up as a random walk does."""
        size = 2 * x.shape[axis] ** 0.5 * x.abs().amax(axis, keepdim=True)[..., None]
        return torch.view_as_complex(self._perturb(torch.view_as_real(x), size))

    def _perturb(self, x: Any, size: torch.Tensor | float) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float32) * 2 - 1
        bits = self.amplitude * torch.finfo(x.dtype).eps * noise.to(x.device)
        return (x.detach() * (1 + 2 * bits) + bits / 2 * size).to(x.dtype)


def _keywords(graph: fx.Graph) -> list[str]:
    """Return the names of a graph's keyword arguments in the order of its capture."""
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None or info.in_spec.num_children != 2:
        return []
    return list(info.in_spec.child(1).context or ())


def within_tolerance(expected: torch.Tensor, actual: torch.Tensor, spread: torch.Tensor) -> bool:
    """Return whether every value is within the tolerance of the range or of its own spread.

    Args:
        expected: float or integer tensor.
        actual: tensor of the same shape.
        spread: change of each value under perturbation; of integers (positions) that under a
            perturbation of floats by their whole tolerance.
    """
    floats = expected.is_floating_point()
    if expected.shape != actual.shape or floats != actual.is_floating_point():
        return False
    a, b = expected.double(), actual.double()
    finite = a[a.isfinite()]
    span = float(finite.abs().max()) if floats and finite.numel() else 0.0
    difference = (a - b).abs().where(a != b, 0.0).where(~(a.isnan() & b.isnan()), 0.0)
    spread = spread.double().nan_to_num(nan=0.0, posinf=0.0)
    return bool((difference <= TOLERANCE * span + NOISE_FACTOR * spread).all())
