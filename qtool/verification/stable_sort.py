"""Which of equal values comes first: ONNX says so, torch does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class StableSort(TorchDispatchMode):
    """While it is open, torch sorts and takes the largest as ONNX does: of equal values the one
    with the lower index first. Codes are often equal, and what is gathered by their order differs
    in everything then."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is aten.topk.default:
            return _largest(*args, **given)
        if func is aten.sort.default:
            return _sorted(*args, **given)
        return func(*args, **given)


def _sorted(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _largest(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: bool, **__: bool
) -> Any:
    values, at = _sorted(x, dim, largest)
    return (values.narrow(dim, 0, k), at.narrow(dim, 0, k)) if x.dim() else (values, at)
