"""Order of equal values in sort and topk: ONNX defines it, torch does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class StableSort(TorchDispatchMode):
    """Make torch order equal values as ONNX does: the lower index first.

    Codes are often equal, and everything gathered in their order depends on it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is aten.topk.default:
            return _topk(*args, **options)
        if func is aten.sort.default:
            return _sort(*args, **options)
        return func(*args, **options)


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: bool, **__: bool
) -> Any:
    values, indices = _sort(x, dim, largest)
    return (values.narrow(dim, 0, k), indices.narrow(dim, 0, k)) if x.dim() else (values, indices)
