"""Tensors whose values are read when they are needed, so that a graph is cheap without them.

A deferred tensor has the shape and dtype of a stored one and the memory of one element. What a pass
computes from it is deferred, too, and computed each time that it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from qtool.core.graph.nodes import tensor

Slices = tuple[slice, ...]
Read = Callable[[Slices | None], torch.Tensor]
"""Returns the values of a tensor, or of a part of it."""

_READS = WeakIdKeyDictionary()
"""Deferred tensor -> `Read`."""


def defer(like: torch.Tensor, read: Read) -> torch.Tensor:
    """Return a deferred tensor.

    Args:
        like: has its shape and dtype; a parameter makes a parameter.
        read: reads its values.
    """
    deferred = torch.zeros((), dtype=like.dtype).expand(like.shape)
    if isinstance(like, nn.Parameter):
        deferred = nn.Parameter(deferred, requires_grad=like.requires_grad)
    _READS[deferred] = read
    return deferred


def is_deferred(stored: torch.Tensor) -> bool:
    """Return whether the values of a tensor are read when they are needed."""
    return stored in _READS


def read_values(stored: torch.Tensor, slices: Slices | None = None) -> torch.Tensor:
    """Return the values of a tensor, deferred or not, detached.

    Args:
        stored: a tensor of a module.
        slices: the part to read; None: all.
    """
    if is_deferred(stored):
        values: torch.Tensor = _READS[stored](slices)
        return values.detach()
    return stored.detach() if slices is None else stored.detach()[slices]


def part_of(stored: torch.Tensor, slices: Slices) -> torch.Tensor:
    """Return a part of a tensor, deferred if that is."""
    part = stored.detach()[slices]
    return defer(part, partial(_read_part, stored, slices)) if is_deferred(stored) else part


def _read_part(stored: torch.Tensor, slices: Slices, more: Slices | None) -> torch.Tensor:
    part = read_values(stored, slices)
    return part if more is None else part[more]


def as_parameter(values: torch.Tensor, requires_grad: bool = True) -> nn.Parameter:
    """Return a tensor as a parameter, deferred if that is."""
    parameter = nn.Parameter(values, requires_grad)
    if is_deferred(values):
        _READS[parameter] = _READS[values]
    return parameter


def computed(
    function: Callable[..., Sequence[torch.Tensor]],
    *sources: torch.Tensor | None,
    like: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Return what a function computes from stored tensors; deferred if one of these is.

    Args:
        function: takes the values of the sources, and returns tensors.
        sources: tensors as they are in a module.
        like: tensors of the shapes and dtypes of the results; by default the function says them,
            called with fake tensors.
    """
    if not any(s is not None and is_deferred(s) for s in sources):
        return list(function(*(None if s is None else s.detach() for s in sources)))

    def read(index: int, slices: Slices | None) -> torch.Tensor:
        values = function(*(None if s is None else read_values(s) for s in sources))[index]
        return values if slices is None else values[slices].clone()

    if like is None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            like = function(*(None if s is None else _fake(s) for s in sources))
    return [defer(t, partial(read, i)) for i, t in enumerate(like)]


def _fake(stored: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor, with the strides of its values."""
    return torch.empty(stored.shape, dtype=stored.dtype)


def has_deferred(module: nn.Module) -> bool:
    """Return whether stored tensors of a graph are read when they are needed."""
    if not isinstance(module, fx.GraphModule):
        return False
    nodes = (n for n in module.graph.nodes if n.op == "get_attr")
    return any(is_deferred(tensor(module, n)) for n in nodes)


def outputs_of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the flat outputs of a network, of which tensors may be deferred."""
    if has_deferred(module):
        assert isinstance(module, fx.GraphModule)
        return run_deferred(module, args, kwargs)
    return pytree.tree_leaves(module(*args, **kwargs))


def run_deferred(
    module: fx.GraphModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda values: values,
) -> list[Any]:
    """Return the flat outputs of a graph, whose tensors are read one by one.

    Args:
        module: the graph.
        args, kwargs: its arguments.
        change: applied to the values of each stored tensor.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    if len(leaves) != len(module.graph.find_nodes(op="placeholder")):
        leaves = [x for x in leaves if x is not None]
    return pytree.tree_leaves(_Run(module, change).run(*leaves, enable_io_processing=False))


class _Run(fx.Interpreter):
    """Runs a graph, whose stored tensors are read where a call needs them."""

    def __init__(
        self, module: fx.GraphModule, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__(module)
        self._change = change

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _Stored(super().get_attr(target, args, kwargs))

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        def value(x: Any) -> Any:
            return self._change(read_values(x.tensor)) if isinstance(x, _Stored) else x

        return pytree.tree_map(value, super().fetch_args_kwargs_from_env(n))


class _Stored:
    """A stored tensor that is not read yet."""

    def __init__(self, stored: torch.Tensor) -> None:
        self.tensor = stored
