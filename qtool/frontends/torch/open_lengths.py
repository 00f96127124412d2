"""`len(tensor)` as a size that may vary: Python makes a number of it, which fixes the batch."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn


@contextmanager
def open_lengths(model: nn.Module) -> Iterator[None]:
    """Let the files of a model's classes read the first size of a tensor by `len`."""
    scopes = {id(s): s for m in model.modules() if (s := _globals(m)) is not None}
    with ExitStack() as stack:
        for scope in scopes.values():
            if "len" not in scope:
                stack.enter_context(mock.patch.dict(scope, {"len": _length}))
        yield


def _globals(module: nn.Module) -> dict[str, Any] | None:
    """Return the names of the file that defines how a module computes; None of torch's own."""
    if type(module).__module__.partition(".")[0] == "torch":
        return None
    return getattr(type(module).forward, "__globals__", None)


def _length(values: Any) -> Any:
    if isinstance(values, torch.Tensor) and values.dim():
        return values.shape[0]
    return builtins.len(values)
