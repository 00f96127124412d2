"""What torch would find out of shapes by taking operators apart, told in one step.

While torch.export traces, each result needs a shape. For a normalization on symbolic sizes torch
computes it through a dozen elementary operators, each with its own guards: half of the time that
tracing a deep network takes. But such a result is as its input is.
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
    nothing = x.new_empty(0)  # as the statistics of inference are
    return torch.empty_like(x), nothing, nothing


_RULES: Mapping[Any, Callable[..., Any]] = {
    aten.relu.default: _same,
    aten.hardtanh.default: _same,
    aten.gelu.default: _same,
    aten.hardswish.default: _same,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
}


@contextmanager
def fast_shapes() -> Iterator[None]:
    """While it is open, torch infers the results of these operators in one step; whatever is out
    of the ordinary is left to torch. Where torch has no such table, all is."""
    from torch import _decomp  # brings sympy, which sets filters of warnings when it is imported

    table = getattr(_decomp, "decomposition_table", {})
    quick = {op: partial(rule, table[op]) for op, rule in _RULES.items() if op in table}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(table, quick))
        config = torch._dynamo.config
        if hasattr(config, "fake_tensor_cache_enabled"):  # looking up takes as long as computing
            stack.enter_context(config.patch(fake_tensor_cache_enabled=False))
        yield
