"""KV cache (keys and values of past tokens) for the layers of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from qtool.core.errors import CaptureError
from qtool.core.ops.attention import grouped_attention

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


class GroupedKVCache(KVCache):
    """A KV cache whose appending is one operator with attention.

    The layers call it instead of their own attention.

    Attributes:
        lengths: index of each text's last token, and the length of the longest text, as of
            `sequence_lengths`.
        mask: whether layers give a mask that is added to the scores; otherwise padding is behind
            the tokens.
        scales: per layer the scales of an int8 cache for keys and values, float [heads x width];
            None for a float cache.
        windows: number of last tokens that each call of `attend` reads, -1 for all.
    """

    def __init__(
        self,
        past: Sequence[Pair],
        lengths: tuple[torch.Tensor, torch.Tensor],
        mask: bool,
        scales: Sequence[Pair] | None,
    ) -> None:
        super().__init__(past)
        self.lengths, self.mask, self.scales = lengths, mask, scales
        self.windows: list[int] = []

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
        mask: torch.Tensor | None,
        scale: float,
        window: int,
        softcap: float,
    ) -> torch.Tensor:
        """Append keys and values, and attend to all tokens.

        Args:
            layer: index.
            query: [batch, heads, sequence, width].
            new: keys and values of the new tokens, [batch, groups, sequence, width].
            mask: added to the scores.
            scale: multiplies the scores.
            window: number of last tokens to attend to, -1 for all.
            softcap: bound of the scores, 0 for none.

        Returns:
            [batch, sequence, heads, width].
        """
        batch, groups, _, width = new[0].shape
        if layer == len(self.pairs):
            dtype = new[0].dtype if self.scales is None else torch.int8
            empty = new[0].new_zeros((batch, groups, 0, width), dtype=dtype)
            self.pairs.append((empty, empty))
        before, scales = self.pairs[layer], None if self.scales is None else self.scales[layer]
        flat = (t.transpose(1, 2).flatten(2) for t in (query, *new))
        heads = query.shape[1]
        output, *present = grouped_attention(
            *(*flat, *before, *self.lengths, None, None, mask if self.mask else None),
            *((None, None) if scales is None else (scales["key"], scales["value"])),
            *(heads, groups, scale, window, softcap),
        )
        self.pairs[layer] = (present[0], present[1])
        self.windows.append(window)
        attended: torch.Tensor = output.unflatten(2, (heads, width))
        return attended


_CURRENT = ContextVar[GroupedKVCache]("KV cache of the current call")
_ATTENTION = "qtool_grouped"  # its name in transformers


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over the current cache; the layers of transformers call it."""
    cache = _CURRENT.get()
    window = -1 if cache.mask else more.get("sliding_window") or -1
    if more.get("s_aux") is not None or query.shape[3] != value.shape[3]:
        raise CaptureError(
            f"{type(module).__name__} computes attention as ONNX Runtime's kernel cannot"
        )
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    options = (scale, window, more.get("softcap") or 0.0)
    return cache.attend(module.layer_idx, query, (key, value), mask, *options), None


def set_current_cache(cache: GroupedKVCache) -> GroupedKVCache:
    """Make `_attention` use this cache from now on, and return it."""
    _CURRENT.set(cache)
    return cache


def attention_windows() -> Sequence[int]:
    """Return the windows of the calls of `_attention` with the current cache, one per layer."""
    return _CURRENT.get().windows


def register_attention(library: Any) -> str:
    """Register attention over a `GroupedKVCache` with transformers, and return its name."""
    library.AttentionInterface.register(_ATTENTION, _attention)
    return _ATTENTION
