"""Causal language models of transformers with the KV cache as inputs and outputs.

One graph serves the prompt (prefill) and each further token (decode).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtool.core.data.batch import CachedTexts
from qtool.core.errors import CaptureError, DataError
from qtool.core.ops.attention import sequence_lengths, token_positions
from qtool.core.remedies import Argument
from qtool.core.types import INT8
from qtool.frontends.data.collators import Collator
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.kv_cache import (
    GroupedKVCache,
    KVCache,
    Pair,
    attention_windows,
    check_equal_lengths,
    register_attention,
    set_current_cache,
)
from qtool.frontends.optional_packages import require
from qtool.frontends.own_models import CACHED_TOKENS, TaskCollator, TaskModel

DYNAMIC: Mapping[str, Mapping[int, str]] = {
    "input_ids": {0: "batch_size", 1: "sequence"},
    "attention_mask": {0: "batch_size", 1: "past + sequence"},
    "past_key_values": {0: "batch_size", 2: "past"},
}
"""Dynamic dimensions of the inputs."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""Layer types of transformers: attention to all tokens, or to a window of the last ones."""

_TRIAL = 9  # tokens that fused and separate attention are compared on
_TOLERANCE = 1e-3  # of the largest logit; a wrong mask changes them by more than a tenth


class DecoderWithCache(TaskModel):
    """A causal language model with its KV cache as tensors.

    Positions count the tokens that the attention mask keeps, so texts may be padded on either side.
    With `fuse_attention` the cache and attention of a layer are one operator, for which padding is
    behind the tokens.

    Attributes, besides those of `TaskModel`:
        config: configuration of the model.
        fused: whether `fuse_attention` succeeded.
        cache_scales: per layer the scales of an int8 cache for keys and values, float [heads x
            width]; None for a float cache.
        layer_types: attention types of the layers; empty if the configuration names none.
        window: number of last tokens that a sliding window has; None without one.
        empty_cache: per layer an empty cache of one text, [1, heads, 0, width], of a model that was
            built without its weights, which computes no cached tokens; None with weights.
    """

    has_cache = True
    cache_scales: Sequence[Pair] | None = None
    fused = False
    empty_cache: Sequence[Pair] | None = None

    def __init__(self, model: Any) -> None:
        """
        Raises:
            CaptureError: the cache of a layer holds something else than keys and values.
        """
        super().__init__()
        self.config: Any = model.config
        text = self.config.get_text_config()
        self.layer_types = tuple(getattr(text, "layer_types", None) or ())
        self.window: int | None = getattr(text, "sliding_window", None)
        if unknown := sorted(set(self.layer_types) - {FULL, SLIDING}):
            raise CaptureError(
                f"{type(model).__name__} has layers of type {unknown[0]}, whose cache is not a KV "
                "cache",
                Argument("--task", "text-generation", "use {}, which exports no cache"),
            )
        self.positions = int(getattr(text, "max_position_embeddings", None) or 0)
        self.model = model

    @property
    def is_grouped(self) -> bool:
        """Whether cache and attention are one operator, in float or int8."""
        return self.fused or self.cache_scales is not None

    def collator(self, plain: Collator) -> CachedPrefixCollator:
        return CachedPrefixCollator(plain, self)

    def batch_size(self, size: int) -> int:
        """Return 1 for grouped attention, which takes several samples with a cache only for a
        prompt or a single token."""
        return 1 if self.is_grouped and self.empty_cache is None else size

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        past_key_values: Sequence[Pair],
    ) -> dict[str, Any]:
        """Return logits and the extended KV cache.

        Args:
            input_ids: int64 [batch, sequence].
            attention_mask: int64 [batch, past + sequence], 1 for tokens and 0 for padding.
            past_key_values: per layer a "key" and a "value", float [batch, heads, past, width].

        Returns:
            "logits" [batch, sequence, tokens] or [batch, 1, tokens], and "present" like
            `past_key_values` with past + sequence tokens.
        """
        if past_key_values:
            check_equal_lengths(past_key_values, attention_mask.shape[1] - input_ids.shape[1])
        call = self._fused_call if self.fused else self._masked_call
        masks, positions, cache = call(input_ids, attention_mask, past_key_values)
        result = self.model(
            input_ids=input_ids,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **({"logits_to_keep": 1} if self.last_logits else {}),
        )
        return {"logits": result.logits, "present": cache.present}

    def _fused_call(
        self, ids: torch.Tensor, mask: torch.Tensor, past: Sequence[Pair]
    ) -> tuple[None, torch.Tensor, KVCache]:
        """Return no mask, positions and cache of a call."""
        last, total = sequence_lengths(mask)
        positions = token_positions(last, ids, self.positions)
        cache = GroupedKVCache(past, (last, total), mask=False, scales=self.cache_scales)
        return None, positions, set_current_cache(cache)

    def _masked_call(
        self,
        ids: torch.Tensor,  # noqa: ARG002  # of `_fused_call`
        mask: torch.Tensor,
        past: Sequence[Pair],
    ) -> tuple[torch.Tensor | dict[str, torch.Tensor], torch.Tensor, KVCache]:
        """Return masks, positions and cache of a call."""
        cache = KVCache(past)
        if self.cache_scales is not None:
            lengths = sequence_lengths(torch.ones_like(mask))
            grouped = GroupedKVCache(past, lengths, mask=True, scales=self.cache_scales)
            cache = set_current_cache(grouped)
        count = mask.cumsum(1)
        own = count[:, cache.get_seq_length() :]
        return self._masks(mask, count, own), (own - 1).clamp(min=0), cache

    def _masks(
        self, attention_mask: torch.Tensor, count: torch.Tensor, own: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the additive attention mask, float [batch, 1, sequence, past + sequence].

        One for all layers, or one per layer type.

        Args:
            attention_mask: as for `forward`.
            count: number of tokens up to each token, int64 [batch, past + sequence].
            own: the same for new tokens only, int64 [batch, sequence].
        """
        # a new token sees another one if its count is not smaller; padding has the largest count
        keys = torch.where(attention_mask > 0, count, torch.iinfo(torch.int64).max)[:, None, :]
        last = own[:, :, None]

        def additive(visible: torch.Tensor) -> torch.Tensor:
            return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]

        full = keys <= last
        if self.window is None or set(self.layer_types) == {FULL}:
            return additive(full)
        near = full & (keys > last - self.window)
        return (
            {FULL: additive(full), SLIDING: additive(near)} if self.layer_types else additive(near)
        )

    @torch.no_grad()
    def fuse_attention(self) -> str | None:
        """Make cache and attention of a layer one operator, ONNX Runtime's GroupQueryAttention.

        Padding is behind the tokens then, and several texts of one call have no cache or one new
        token each.

        Returns:
            Why the layers stay as they are; None where they are fused.
        """
        implementation = self.model.config._attn_implementation
        device = next(self.model.parameters()).device
        ids = torch.arange(_TRIAL, device=device)[None] % min(_TRIAL, self.config.vocab_size)
        inputs = ids, torch.ones_like(ids), ()
        expected = self(*inputs)["logits"]
        self.model.set_attn_implementation(
            register_attention(require("transformers", "fused attention", CaptureError))
        )
        self.fused = True
        try:
            reason = self._difference(self(*inputs)["logits"], expected)
        except CaptureError as error:
            reason = str(error)
        if reason is not None:
            self.fused, self.refusal = False, reason
            self.model.set_attn_implementation(implementation)
        return reason

    def _difference(self, logits: torch.Tensor, expected: torch.Tensor) -> str | None:
        """Return why the logits or windows of fused layers are not those of the model."""
        kinds = self.layer_types or (FULL if self.window is None else SLIDING,)
        layers = int(self.config.get_text_config().num_hidden_layers)
        sliding = -1 if self.window is None else self.window
        windows = [-1 if kind == FULL else sliding for kind in kinds]
        called = list(attention_windows())
        if called != (windows if len(windows) == layers else windows * layers):
            name = type(self.model).__name__
            return f"{name} does not call the attention interface of transformers in all layers"
        noise = float((logits - expected).abs().max())
        if not noise <= _TOLERANCE * float(expected.abs().max()):
            return f"{type(self.model).__name__} masks its attention in a way of its own"
        return None

    @torch.no_grad()
    def quantize_cache(self, data: Iterable[Any]) -> None:
        """Quantize the KV cache to int8 from now on.

        Each channel's scale is its largest absolute value in the data over 127.

        Args:
            data: batches for the model with a float cache.

        Raises:
            CaptureError: the layers do not call the attention interface of transformers.
            DataError: no data.
        """
        largest: list[dict[str, torch.Tensor]] = []
        for batch in data:
            mask = batch["attention_mask"][:, None, :, None]
            maxima = [
                {kind: (t * mask).abs().amax((0, 2)) for kind, t in pair.items()}
                for pair in self(**batch)["present"]
            ]
            pairs = zip(largest or maxima, maxima, strict=True)
            largest = [{kind: torch.maximum(a[kind], b[kind]) for kind in a} for a, b in pairs]
        if not largest:
            raise DataError("an int8 KV cache needs data for its scales")
        self.use_int8_cache(
            [{kind: int8_scales(t) for kind, t in pair.items()} for pair in largest],
            batch["input_ids"],
        )

    @torch.no_grad()
    def use_int8_cache(self, scales: Sequence[Pair], ids: torch.Tensor) -> None:
        """Hold the KV cache in int8 from now on.

        Args:
            scales: as the attribute `cache_scales`.
            ids: a batch to try it with, [batch, tokens].

        Raises:
            CaptureError: the layers do not call the attention interface of transformers.
        """
        library = require("transformers", "an int8 KV cache", CaptureError)
        self.cache_scales = scales
        self.model.set_attn_implementation(register_attention(library))
        self(ids, torch.ones_like(ids), ())
        if len(attention_windows()) != len(self.cache_scales):
            raise CaptureError(
                f"{type(self.model).__name__} does not use the attention interface of "
                "transformers; its KV cache stays in float"
            )

    @torch.no_grad()
    def with_cached_prefix(
        self, ids: torch.Tensor, mask: torch.Tensor, past: int
    ) -> dict[str, Any]:
        """Return inputs for ids [batch, tokens], the first `past` tokens in the KV cache.

        With `past` 0 and without weights all tokens are new ones, and the cache is empty.
        """
        if self.empty_cache is not None:
            pairs = self.blank_cache(len(ids), 0)
            return {"input_ids": ids, "attention_mask": mask, "past_key_values": pairs}
        cache = self(ids[:, : max(past, 1)], mask[:, : max(past, 1)], ())["present"]
        cache = [{kind: t[:, :, :past] for kind, t in pair.items()} for pair in cache]
        return {"input_ids": ids[:, past:], "attention_mask": mask, "past_key_values": cache}

    def blank_cache(self, batch: int, tokens: int) -> list[dict[str, torch.Tensor]]:
        """Return a cache of zeros for a model without weights."""
        assert self.empty_cache is not None
        dtype = torch.float32 if self.cache_scales is None else torch.int8
        return [
            {
                k: torch.zeros(batch, t.shape[1], tokens, t.shape[3], dtype=dtype)
                for k, t in p.items()
            }
            for p in self.empty_cache
        ]

    def capture_example(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs with a cache of some tokens in place of an empty one, to capture a model
        without weights: its number of tokens is dynamic only if it is no special one."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        before = mask.new_ones(len(mask), CACHED_TOKENS)
        cache = self.blank_cache(len(ids), CACHED_TOKENS)
        return {
            "input_ids": ids,
            "attention_mask": torch.cat([before, mask], 1),
            "past_key_values": cache,
        }


def int8_scales(largest: torch.Tensor) -> torch.Tensor:
    """Return the scale of each channel of an int8 cache, flat, from its largest magnitude."""
    least = torch.finfo(torch.float32).tiny * INT8.qmax
    return (largest.clamp(min=least) / INT8.qmax).flatten()


@dataclass(frozen=True)
class CachedPrefixCollator(TaskCollator):
    """Collates texts for a decoder: the first tokens of each are in the KV cache already."""

    model: DecoderWithCache

    def __call__(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        batch = self.collate(rows)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if self.cached and (short := self.cached + 2 - ids.shape[1]) > 0:
            ids = nn.functional.pad(ids, (0, short), value=int(ids[0, 0]))
            mask = nn.functional.pad(mask, (0, short), value=int(self.model.fused))
        whole = self.model.with_cached_prefix(ids, mask, 0)
        if not self.cached:
            return whole
        return CachedTexts(self.model.with_cached_prefix(ids, mask, self.cached), whole)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        return DYNAMIC
