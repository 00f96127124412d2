"""KV cache (keys and values of past tokens) for the layers of transformers: float and int8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from qtool.core.errors import CaptureError
from qtool.core.ops.attention import cached_attention

Pair = Mapping[str, torch.Tensor]


def check_equal_lengths(pairs: Sequence[Pair], length: Any = None) -> None:
    """Check that keys and values of all layers have equally many tokens.

    torch.export learns it from this; otherwise its graph depends on the sizes of the example.

    Args:
        pairs: keys and values per layer, each [batch, heads, tokens, width].
        length: the number of tokens; None if it is not known.

    Raises:
        RuntimeError: they have not.
    """
    for pair in pairs:
        for tensor in pair.values():
            length = tensor.shape[2] if length is None else length
            torch._check(tensor.shape[2] == length, lambda: "layers have caches of unequal length")


class KVCache:
    """A float KV cache with the interface that the layers of transformers call.

    Attributes:
        pairs: per layer keys and values, each [batch, heads, tokens, width].
    """

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
        *rest: Any,  # noqa: ARG002  # arguments of other cache types
        **more: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx == len(self.pairs):  # an empty cache
            self.pairs.append((keys, values))
        else:
            before = self.pairs[layer_idx]
            joined = (torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2))
            self.pairs[layer_idx] = joined
        return self.pairs[layer_idx]

    @property
    def present(self) -> list[dict[str, torch.Tensor]]:
        """Keys and values of all tokens, per layer."""
        return [{"key": key, "value": value} for key, value in self.pairs]


class Int8KVCache(KVCache):
    """A KV cache in int8 with one scale per channel of each layer.

    Attention and appending are one operator, which the layers call instead of their own attention.

    Attributes:
        scales: per layer the scales of keys and values, float [heads x width].
        calls: number of calls of `attend`.
    """

    def __init__(self, past: Sequence[Pair], scales: Sequence[Pair]) -> None:
        super().__init__(past)
        self.scales = scales
        self.calls = 0

    def update(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer_idx: int,  # noqa: ARG002  # of the base class
        *rest: Any,  # noqa: ARG002
        **more: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return only the new keys and values; `attend` appends them."""
        return keys, values

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        new: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Append keys and values, and attend to all tokens.

        Args:
            layer: index.
            query: [batch, heads, sequence, width].
            new: keys and values of the new tokens, [batch, groups, sequence, width].
            mask: added to the scores.
            scale: multiplies the scores.

        Returns:
            [batch, sequence, heads, width].
        """
        batch, groups, _, width = new[0].shape
        if layer == len(self.pairs):
            empty = new[0].new_zeros((batch, groups, 0, width), dtype=torch.int8)
            self.pairs.append((empty, empty))
        before, scales = self.pairs[layer], self.scales[layer]
        flat = (t.transpose(1, 2).flatten(2) for t in (query, *new))
        heads, pair = query.shape[1], (scales["key"], scales["value"])
        output, *present = cached_attention(*flat, *before, *pair, mask, heads, groups, scale)
        self.pairs[layer] = (present[0], present[1])
        self.calls += 1
        attended: torch.Tensor = output.unflatten(2, (heads, width))
        return attended


_CURRENT = ContextVar[Int8KVCache]("int8 KV cache of the current call")
_ATTENTION = "qtool_int8_cache"  # its name in transformers


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over the current cache; the layers of transformers call it."""
    if any(more.get(name) is not None for name in ("softcap", "sliding_window", "s_aux")):
        raise CaptureError(f"{type(module).__name__} does not support an int8 KV cache")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return _CURRENT.get().attend(module.layer_idx, query, (key, value), mask, scale), None


def set_current_cache(cache: Int8KVCache) -> Int8KVCache:
    """Make `_attention` use this cache from now on, and return it."""
    _CURRENT.set(cache)
    return cache


def count_attention_calls() -> int:
    """Return how many layers have called `_attention` with the current cache."""
    return _CURRENT.get().calls


def register_attention(library: Any) -> str:
    """Register attention over an `Int8KVCache` with transformers, and return its name."""
    library.AttentionInterface.register(_ATTENTION, _attention)
    return _ATTENTION
