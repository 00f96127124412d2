"""Infers the shapes of some operators in one step while torch.export traces.

torch infers the shape of a normalization or an activation with symbolic sizes through a dozen
elementary operators, each with its own guards: half of the time of tracing a deep network. But the
result has the shape of the input. The result of a convolution it converts to the memory format that
the input decides, which is nearly always the usual one. Of a recurrent layer torch runs each step,
which fixes the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

aten = torch.ops.aten
Decomposition = Callable[..., Any]


def _same(whole: Decomposition, x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    return torch.empty_like(x) if x.is_floating_point() else whole(x, *rest, **named)


def _batch_norm(whole: Decomposition, x: torch.Tensor, *rest: Any) -> Any:
    if any(t is not None and t.dtype != x.dtype for t in rest[:4]):
        return whole(x, *rest)
    nothing = x.new_empty(0)  # like the statistics in inference
    return torch.empty_like(x), nothing, nothing


_ELEMENTWISE = (
    *("abs", "clamp", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh"),
    *("leaky_relu", "log", "mish", "neg", "relu", "rsqrt", "sigmoid", "silu", "softplus", "sqrt"),
    *("tanh",),
)
_RULES: Mapping[torch._ops.OpOverload, Decomposition] = {
    **{getattr(aten, name).default: _same for name in _ELEMENTWISE},
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}


def _convolution(
    whole: Decomposition, mode: Any, function: torch._ops.OpOverload, *args: Any, **named: Any
) -> Any:
    """Return what torch does, but look for the memory format only where it may be another one."""
    if named or function is not aten.convolution.default:
        return whole(mode, function, *args, **named)
    x, weight = args[:2]
    by_channels = isinstance(x.stride(1), int) and x.stride(1) == 1
    if by_channels or not weight.is_contiguous() or x.dtype != weight.dtype:
        return whole(mode, function, *args)
    with mode:
        return torch._meta_registrations.meta_conv(*args)


def _recurrent(x: torch.Tensor, state: Any, weights: Any, *options: Any) -> Any:
    """Return all states, and the last ones. The result is `aten.lstm.input`'s (a list of two
    states) or `aten.gru.input`'s."""
    states = state if isinstance(state, list | tuple) else [state]
    both = bool(options[4])  # bias, layers, dropout, training, bidirectional, batch first
    y = x.new_empty([*x.shape[:2], (2 if both else 1) * states[0].shape[2]])
    return (y, *map(torch.empty_like, states))


_RECURRENT = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
_COMPOSED = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextmanager
def _recurrent_in_one_step() -> Iterator[None]:
    """Replace the Python kernels of recurrent layers, which torch uses for symbolic sizes."""
    with ExitStack() as stack:
        for op in _RECURRENT:
            kernels, cache = getattr(op, "py_kernels", None), getattr(op, "_dispatch_cache", None)
            if kernels is not None and cache is not None:
                stack.callback(cache.clear)
                stack.enter_context(mock.patch.dict(kernels, dict.fromkeys(_COMPOSED, _recurrent)))
                cache.clear()
        yield


@contextmanager
def fast_shapes() -> Iterator[None]:
    """Infer the results of some operators in one step while the context is open.

    Unusual arguments are left to torch; so is everything if torch has no decomposition table.
    """
    from torch import _decomp  # imports sympy, which sets warning filters
    from torch._subclasses import fake_impls

    table = getattr(_decomp, "decomposition_table", {})
    quick = {op: partial(rule, table[op]) for op, rule in _RULES.items() if op in table}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(table, quick))
        stack.enter_context(_recurrent_in_one_step())
        known = fake_impls.op_implementations_dict
        if (whole := known.get(aten.convolution.default)) is not None:
            rule = {aten.convolution.default: partial(_convolution, whole)}
            stack.enter_context(mock.patch.dict(known, rule))
        config = torch._dynamo.config
        if hasattr(config, "fake_tensor_cache_enabled"):  # a lookup takes as long as computing
            stack.enter_context(config.patch(fake_tensor_cache_enabled=False))
        yield
