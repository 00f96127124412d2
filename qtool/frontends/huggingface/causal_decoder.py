"""Causal language models of transformers with their cache as tensors, prefill and step in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtool.core.errors import CaptureError, DataError
from qtool.core.types import INT8
from qtool.frontends.data.collators import Collator
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.kv_cache import (
    Int8KVCache,
    KVCache,
    Pair,
    count_attention_calls,
    register_attention,
    set_current_cache,
)
from qtool.frontends.optional_packages import require

DYNAMIC: Mapping[str, Mapping[int, str]] = {
    "input_ids": {0: "batch", 1: "sequence"},
    "attention_mask": {0: "batch", 1: "total"},
    "past_key_values": {0: "batch", 2: "past"},
}
"""The sizes of the inputs that vary; total is past and sequence."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls layers that see all tokens, and those that see the last ones alone."""

CACHED_TOKENS = 4  # tokens of a text that a batch of it has in its cache


class DecoderWithCache(nn.Module):
    """A causal language model as one graph for the prompt and for each further token.

    Positions are counted over the tokens that the mask lets through, and a token sees those up to
    itself, in layers with a window no more than so many: so texts may be padded on either side.

    Attributes:
        config: of the model.
        scales: of a cache in int8, for each layer those of its keys and values, float [heads x
            width]; None: the cache is float.
    """

    cache_scales: list[Pair] | None = None

    def __init__(self, model: Any) -> None:
        """Raises CaptureError: the cache of a layer is another one than of keys and values."""
        super().__init__()
        self.config: Any = model.config
        text = self.config.get_text_config()
        self.kinds = frozenset(getattr(text, "layer_types", None) or ())
        self.window: int | None = getattr(text, "sliding_window", None)
        if odd := sorted(self.kinds - {FULL, SLIDING}):
            raise CaptureError(
                f"{type(model).__name__} has layers of {odd[0]}, whose cache is not one of keys "
                "and values of all tokens; take --task text-generation, which leaves out the cache"
            )
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        past_key_values: Sequence[Pair],
    ) -> dict[str, Any]:
        """
        Args:
            input_ids: int64 [batch, sequence]. attention_mask: int64 [batch, past + sequence], 1
            for tokens and 0 for padding. past_key_values: for each layer a "key" and a "value",
            float [batch, heads, past, width].

        Returns: "logits" [batch, sequence, tokens], and "present" as past_key_values, of past and
            sequence.
        """
        cache = KVCache(past_key_values)
        if self.cache_scales is not None:
            cache = set_current_cache(Int8KVCache(past_key_values, self.cache_scales))
        count = attention_mask.cumsum(1)
        own = count[:, cache.get_seq_length() :]
        result = self.model(
            input_ids=input_ids,
            attention_mask=self._masks(attention_mask, count, own),
            position_ids=(own - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
        return {"logits": result.logits, "present": cache.present}

    def _masks(
        self, attention_mask: torch.Tensor, count: torch.Tensor, own: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """What layers add to their scores, float [batch, 1, sequence, past + sequence]: one for
        all, or by the kind of layer. count, own: of tokens up to each one, and to each new one."""
        # a token is before another one, or is it, where no more tokens have been counted up to it
        keys = torch.where(attention_mask > 0, count, torch.iinfo(torch.int64).max)[:, None, :]
        last = own[:, :, None]

        def added(seen: torch.Tensor) -> torch.Tensor:
            return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]

        full = keys <= last
        if self.window is None or self.kinds == {FULL}:
            return added(full)
        near = full & (keys > last - self.window)
        return {FULL: added(full), SLIDING: added(near)} if self.kinds else added(near)

    @torch.no_grad()
    def quantize_cache(self, data: Iterable[Any]) -> None:
        """The cache is one of int8 from now on, with a scale for each channel: the largest value
        that it has in this data, over 127.

        Args:
            data: batches for the model as it is, with a float cache.

        Raises:
            CaptureError: the layers compute attention in another way than transformers has it.
            DataError: no data.
        """
        library = require("transformers", "a cache in int8", CaptureError)
        most: list[dict[str, torch.Tensor]] = []
        for batch in data:
            kept = batch["attention_mask"][:, None, :, None]
            found = [
                {kind: (t * kept).abs().amax((0, 2)) for kind, t in pair.items()}
                for pair in self(**batch)["present"]
            ]
            pairs = zip(most or found, found, strict=True)
            most = [{kind: torch.maximum(a[kind], b[kind]) for kind in a} for a, b in pairs]
        if not most:
            raise DataError("a cache in int8 needs data for its scales")
        least = torch.finfo(torch.float32).tiny * INT8.qmax
        self.cache_scales = [
            {kind: (t.clamp(min=least) / INT8.qmax).flatten() for kind, t in pair.items()}
            for pair in most
        ]
        self.model.set_attn_implementation(register_attention(library))
        ids = batch["input_ids"]
        self(ids, torch.ones_like(ids), ())
        if count_attention_calls() != len(self.cache_scales):
            raise CaptureError(
                f"{type(self.model).__name__} computes attention in a way of its own; its cache "
                "stays in float"
            )

    hold_in_int8 = quantize_cache  # its former name

    @torch.no_grad()
    def with_cached_prefix(
        self, ids: torch.Tensor, mask: torch.Tensor, past: int
    ) -> dict[str, Any]:
        """The inputs of a call on [batch, tokens] of which the first ones are in the cache."""
        cache = self(ids[:, :past], mask[:, :past], ())["present"]
        return {"input_ids": ids[:, past:], "attention_mask": mask, "past_key_values": cache}


@dataclass(frozen=True)
class CachedPrefixCollator:
    """Texts as a decoder reads them: their first tokens are in the cache already."""

    encode: Collator
    model: DecoderWithCache

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        made = self.encode(rows)
        ids, mask = made["input_ids"], made["attention_mask"]
        if (short := CACHED_TOKENS + 2 - ids.shape[1]) > 0:
            ids = nn.functional.pad(ids, (0, short), value=int(ids[0, 0]))
            mask = nn.functional.pad(mask, (0, short))
        return self.model.with_cached_prefix(ids, mask, CACHED_TOKENS)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        return DYNAMIC
