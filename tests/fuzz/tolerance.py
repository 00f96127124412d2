"""Tolerances of the fuzz oracle.

None comes from qtool: a tolerance that is widened there by mistake shows here as a difference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

NEAR = 1e-3
"""Of the range of an output, between two float runs on new data: a quarter of a step of 8 bits
(1/255), below which a difference cannot change what quantization does."""
RANGE = 1e-4
"""Of the largest value of an output, for each value: some 800 roundings of float32 (2^-23), which
is a deep network's sums in another order, and a fortieth of a step of 8 bits."""
SPREAD = 10
"""How much farther a runtime may be off than random perturbations: roundings of a sum of n that all
point in one direction go sqrt(n) times as far as random ones, and kernels add up about 100 values
before they start another sum."""
DRAWS = 32
"""Perturbed runs, of which the farthest counts. A value next to a jump (Sign, Floor) flips in some
of them: with a probability of a fifth 32 runs miss it once in 1,000 cases, 8 once in six."""
BITS = 2
"""Last bits by which a result is perturbed: correctly rounded results are off by half a bit, those
of exp and its kin in runtimes by up to two."""
FLIPPED = 0.01
"""Share of integers (classes, ranks) that may differ: those of values that tie."""

aten = torch.ops.aten
NEAR_ONE = {
    aten.elu.default: 1.8,  # selu's factor is 1.76
    aten.celu.default: 1.8,
    aten.selu.default: 1.8,
    aten.expm1.default: 1.0,
    aten.log1p.default: 1.0,
    aten.sinh.default: 1.0,
    aten.asinh.default: 1.0,
    aten.atanh.default: 1.0,
    aten.softplus.default: 1.0,
    aten.sigmoid.default: 1.0,
}
"""What runtimes compute by way of numbers near 1, whose last bits are larger than those of a small
result: exp(x) - 1, log(1 + x)."""
LIKE_INPUT = {aten.silu.default, aten.gelu.default}  # x times a number near 1, less x: cancels
RECURRENT = ("qtool.gru.default", "qtool.lstm.default", "qtool.rnn.default")  # of sigmoids


def distance(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference over the range of `expected`; inf where type or shape differ."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if float((expected != actual).double().mean()) <= FLIPPED else float("inf")
    kind = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.detach().to(kind), actual.detach().to(kind)
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(same, 0.0)
    size = a.abs()[a.isfinite()]
    low = a[a.isfinite()].real
    span = float(size.max()) if size.numel() else 0.0
    if low.numel() and not a.is_complex():
        span = max(span, float(low.max() - low.min()))
    return float(off.max()) / max(span, 1e-30)


def float_noise(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """SPREAD times the distance of a network to itself in float64, or with weights and inputs that
    are perturbed by their last bits, whichever is more."""
    generator = torch.Generator().manual_seed(1)
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: _perturbed(t, generator),
        torch.Tensor.double,
    ]
    moves = [_move(module, args, kwargs, change) for change in changes]
    return SPREAD * max((m for m in moves if m < 1), default=0.0)  # 1: another function


def _move(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    def changed(x: Any) -> Any:
        return change(x.detach()) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    state = {n: changed(t) for n, t in (*module.named_parameters(), *module.named_buffers())}
    with torch.no_grad():
        plain = pytree.tree_leaves(module(*args, **kwargs))
        given, named = pytree.tree_map(changed, (tuple(args), dict(kwargs)))
        try:
            other = pytree.tree_leaves(torch.func.functional_call(module, state, given, named))
        except Exception:  # noqa: BLE001  # a network may insist on float32
            return 0.0
    pairs = [(a, b) for a, b in zip(plain, other, strict=True) if isinstance(a, torch.Tensor)]
    return max((distance(a, b.to(a.dtype)) for a, b in pairs if a.is_floating_point()), default=0.0)


class Perturbed(fx.Interpreter):
    """Runs a graph with the last bits of each float result perturbed; each run differs.

    Attributes:
        still: runs the graph without perturbation.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.still = False
        self.generator = torch.Generator().manual_seed(1)

    def outputs(self, args: Sequence[Any]) -> list[Any]:
        """Outputs of one call, flat."""
        leaves = pytree.tree_leaves(tuple(args))
        with torch.no_grad():
            return pytree.tree_leaves(self.run(*leaves, enable_io_processing=False))

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self.still or n.op == "output":
            return result
        through: torch.Tensor | float = 0.0
        if n.op == "call_function" and n.target in LIKE_INPUT:
            through = self.fetch_args_kwargs_from_env(n)[0][0].abs()
        elif str(n.target) in RECURRENT:
            through = 1.0
        elif n.op == "call_function" and n.target in NEAR_ONE:
            numbers = (a for a in (*n.args[1:], *n.kwargs.values()) if isinstance(a, int | float))
            least = NEAR_ONE[n.target]
            through = max([least, *map(abs, numbers)]) if least > 1 else least
        return pytree.tree_map(lambda x: self._perturb(x, through), result)

    def _perturb(self, x: Any, through: torch.Tensor | float) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return _perturbed(x.detach(), self.generator, through)


def _perturbed(
    x: torch.Tensor, generator: torch.Generator, through: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """x with up to BITS last bits of itself, and half a bit of `through`, added at random."""
    away = torch.rand(x.shape, generator=generator, dtype=torch.float32).to(x.device) * 2 - 1
    bits = torch.finfo(x.dtype).eps * away
    return (x * (1 + BITS * bits) + bits / 2 * through).to(x.dtype)


def within(expected: torch.Tensor, actual: torch.Tensor, moves: torch.Tensor) -> bool:
    """Whether each value is off by no more than RANGE of the largest, and SPREAD times its move.

    Args:
        moves: how far each value moves when the last bits of the graph are perturbed.
    """
    if expected.shape != actual.shape or not actual.is_floating_point():
        return False
    a, b = expected.double(), actual.double()
    finite = a[a.isfinite()].abs()
    span = float(finite.max()) if finite.numel() else 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs().masked_fill(same, 0.0)
    open_ = moves.double().nan_to_num(nan=0.0, posinf=0.0)
    return bool((off <= RANGE * span + SPREAD * open_).all())
