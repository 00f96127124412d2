"""A random network as data: what is drawn, kept as a regression, and built into a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from tests.fuzz.network_ops import OPS
from tests.models.small import settle

FORMS = ("tensor", "tuple", "dict", "nested")
SIZES = (1.0, 0.05, 40.0)  # of the data: as it comes, small, large
_LOOKED_UP = 7  # rows of tables, one above the largest number


@dataclass(frozen=True)
class Step:
    """One call. `of`: numbers of values: the inputs, then what earlier steps gave. `again`: the
    step whose layer is called once more, or None for a layer of its own."""

    op: str
    of: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    again: int | None = None


@dataclass(frozen=True)
class Network:
    """A network, its data, and how it is converted.

    inputs: shapes without the batch; of one size and "ids", numbers to look up.
    outputs: numbers of values. form: how they are given back. keys: of a dict.
    weights: "plain", or what is odd about those of convolutions and linear layers.
    settings: arguments of `quantize`, and `format`.
    """

    inputs: tuple[tuple[int | str, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    form: str = "tensor"
    keys: tuple[str, ...] = ()
    weights: str = "plain"
    size: float = 1.0
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Network:
        steps = tuple(Step(**{**s, "of": tuple(s["of"])}) for s in data["steps"])
        inputs = tuple(map(tuple, data["inputs"]))
        tuples = {k: tuple(data.get(k, ())) for k in ("outputs", "keys")}
        return Network(**{**data, **tuples, "inputs": inputs, "steps": steps})

    def module(self) -> Fuzzed:
        """In eval mode, the same weights every time."""
        torch.manual_seed(self.seed)
        made = Fuzzed(self)
        _spoil(made, self.weights)
        settle(made)
        return made

    def batch(self, count: int, seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        return tuple(draw_input(i, count, self.size, generator) for i in self.inputs)


def draw_input(
    shape: Sequence[int | str], count: int, size: float, generator: torch.Generator
) -> torch.Tensor:
    if "ids" in shape:
        sizes = [count, *(s for s in shape if s != "ids")]
        return torch.randint(0, _LOOKED_UP, sizes, generator=generator)
    return torch.randn([count, *shape], generator=generator) * size


def _spoil(module: nn.Module, how: str) -> None:
    """What training and pruning leave: channels of unlike width, or of zeros, tiny weights."""
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() < 2:
            continue
        with torch.no_grad():
            if how == "uneven":
                weight.mul_(
                    torch.logspace(-1.5, 0.5, len(weight)).view(-1, *[1] * (weight.dim() - 1))
                )
            elif how == "zero channel":
                weight[0] = 0
            elif how == "zero":
                weight.zero_()
            elif how == "tiny":
                weight.mul_(1e-4)


class Fuzzed(nn.Module):
    """Runs the steps of a description."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self._calls: list[Callable[..., Any]] = []
        values = list(network.batch(2, 0))
        for step in network.steps:
            call = self._call(step, values)
            with torch.no_grad():
                values.extend(apply(call, [values[i] for i in step.of]))
            self._take(step, call)

    def try_step(
        self, step: Step, values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...] | None:
        """What a step gives on data; None where torch refuses it."""
        try:
            self._tried = self._call(step, values)
            with torch.no_grad():
                return apply(self._tried, [values[i] for i in step.of])
        except (RuntimeError, ValueError, AssertionError, LookupError, TypeError):
            return None

    def add_step(self, step: Step) -> None:
        """Takes the step that was tried last."""
        self._take(step, self._tried)

    def _call(self, step: Step, values: Sequence[torch.Tensor]) -> Callable[..., Any]:
        if step.again is not None:
            return self._calls[step.again]
        return OPS[step.op].make([tuple(values[i].shape) for i in step.of], step.options)

    def _take(self, step: Step, call: Callable[..., Any]) -> None:
        if isinstance(call, nn.Module) and step.again is None:
            self.add_module(step.name or f"layer{len(self._calls)}", call.eval())
        self._calls.append(call)

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for step, call in zip(self._network.steps, self._calls, strict=True):
            values.extend(apply(call, [values[i] for i in step.of]))
        found = [values[i] for i in self._network.outputs]
        form, keys = self._network.form, self._network.keys
        if form == "tensor":
            return found[0]
        if form == "tuple":
            return tuple(found)
        named = dict(zip(keys, found, strict=False))
        return named if form == "dict" else {"all": [named, (found[0] * 1,)]}


def apply(call: Callable[..., Any], given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a call gives, as a tuple of tensors."""
    found = call(*given)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)
