"""Caches of keys and values as the layers of transformers take them: in float, and in int8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from qtool.core.errors import CaptureError
from qtool.core.ops.attention import cached_attention

Pair = Mapping[str, torch.Tensor]


class KVCache:
    """What the layers of transformers take for a cache: keys and values, and what is appended."""

    is_compileable = False

    def __init__(self, past: Sequence[Pair]) -> None:
        self.pairs = [(pair["key"], pair["value"]) for pair in past]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.pairs[layer_idx][0].shape[2] if layer_idx < len(self.pairs) else 0

    def update(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer_idx: int,
        *rest: Any,  # noqa: ARG002  # what other kinds of cache want to know
        **more: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == len(self.pairs):  # of a cache that is empty
            self.pairs.append((keys, values))
        else:
            before = self.pairs[layer_idx]
            joined = (torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2))
            self.pairs[layer_idx] = joined
        return self.pairs[layer_idx]

    @property
    def present(self) -> list[dict[str, torch.Tensor]]:
        return [{"key": key, "value": value} for key, value in self.pairs]


class Int8KVCache(KVCache):
    """The same in int8, with scales for the channels of each layer. Attention and what is appended
    are one operator, which the layers call in place of their own."""

    def __init__(self, past: Sequence[Pair], scales: Sequence[Pair]) -> None:
        super().__init__(past)
        self.scales = scales
        self.calls = 0

    def update(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer_idx: int,  # noqa: ARG002  # of the base
        *rest: Any,  # noqa: ARG002
        **more: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The new ones alone; `attend` appends them."""
        return keys, values

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        new: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """[batch, sequence, heads, width]; keys and values of all tokens are remembered."""
        batch, groups, _, width = new[0].shape
        if layer == len(self.pairs):
            none = new[0].new_zeros((batch, groups, 0, width), dtype=torch.int8)
            self.pairs.append((none, none))
        before, scales = self.pairs[layer], self.scales[layer]
        flat = (t.transpose(1, 2).flatten(2) for t in (query, *new))
        heads, numbers = query.shape[1], (scales["key"], scales["value"])
        made = cached_attention(*flat, *before, *numbers, mask, heads, groups, scale)
        self.pairs[layer] = made[1:]
        self.calls += 1
        found: torch.Tensor = made[0].unflatten(2, (heads, width))
        return found


_CURRENT = ContextVar[Int8KVCache]("the cache of the call under way")
_ATTENTION = "qtool_int8_cache"  # as transformers knows it


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """What the layers of transformers call for their attention."""
    if any(more.get(name) is not None for name in ("softcap", "sliding_window", "s_aux")):
        raise CaptureError(f"{type(module).__name__} has no form with a cache in int8")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return _CURRENT.get().attend(module.layer_idx, query, (key, value), mask, scale), None


def set_current_cache(cache: Int8KVCache) -> Int8KVCache:
    """The layers' attention is over this one from now on."""
    _CURRENT.set(cache)
    return cache


def count_attention_calls() -> int:
    """How many layers have been over the one of the last call."""
    return _CURRENT.get().calls


def register_attention(library: Any) -> str:
    """The name by which transformers knows the attention over an `Int8Cache`."""
    library.AttentionInterface.register(_ATTENTION, _attention)
    return _ATTENTION
