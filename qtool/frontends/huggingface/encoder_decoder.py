"""Encoder-decoder models of transformers as two graphs: encoder and decoder.

The encoder part also computes the cross-attention keys and values of each decoder layer, so that
this is done once. The decoder part takes them together with its own KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtool.core.errors import CaptureError
from qtool.frontends.data.collators import Collator
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.kv_cache import Pair, check_equal_lengths
from qtool.frontends.optional_packages import require

CACHED_TOKENS = 4  # tokens of each text that a calibration batch has in its KV cache
Sizes = Mapping[str, Mapping[int, str]]


class _Part(nn.Module):
    """One part of an encoder-decoder model.

    Attributes:
        config: configuration of the model.
        model: the whole model.
    """

    def __init__(self, model: Any) -> None:
        """
        Raises:
            CaptureError: the model is not an encoder-decoder.
        """
        super().__init__()
        self.config: Any = model.config
        if not self.config.is_encoder_decoder:
            raise CaptureError(f"{type(model).__name__} is not an encoder-decoder model")
        self.model = model

    def _run_decoder(self, ids: torch.Tensor, encoded: torch.Tensor, mask: Any, cache: Any) -> Any:
        return self.model(
            encoder_outputs=(encoded,),
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )


class EncoderPart(_Part):
    """The encoder, and the cross-attention keys and values of the decoder's layers."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return "cross": per decoder layer a "key" and a "value", float [batch, heads, length,
        width]."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask}
        named |= {"input_features": input_features, "input_values": input_values}
        inputs = {name: value for name, value in named.items() if value is not None}
        encoded = self.model.get_encoder()(**inputs)[0]
        start = torch.full((encoded.shape[0], 1), self._start, device=encoded.device)
        cache = _make_cache((), ())
        self._run_decoder(start, encoded, None, cache)
        return {"cross": _pairs(cache.cross_attention_cache)}

    @property
    def _start(self) -> int:
        token = getattr(self.config, "decoder_start_token_id", None)
        return int(self.config.pad_token_id if token is None else token)

    def batch(self, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the inputs of this part from a batch of the whole model."""
        return {name: t for name, t in batch.items() if not name.startswith("decoder_")}

    def dynamic(self, collate: Any) -> Sizes:
        """Return the dynamic dimensions of this part's inputs."""
        return {n: s for n, s in collate.dynamic.items() if not n.startswith("decoder_")}


class DecoderPart(_Part):
    """The decoder with its KV cache. All texts of a batch start at the same position."""

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: Sequence[Pair],
        cross: Sequence[Pair],
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return logits and the extended KV cache.

        Args:
            input_ids: int64 [batch, sequence]; a text starts with the decoder start token.
            past_key_values: per layer a "key" and a "value", float [batch, heads, past, width].
            cross: output of the encoder part.
            encoder_attention_mask: int64 [batch, length].

        Returns:
            "logits" [batch, sequence, tokens], and "present" like `past_key_values` with past +
            sequence tokens.
        """
        check_equal_lengths(past_key_values)
        mask = encoder_attention_mask
        check_equal_lengths(cross, None if mask is None else mask.shape[1])
        keys = cross[0]["key"]
        # the decoder reads only the shape: its cache has the cross-attention keys and values
        encoded = keys.new_zeros(keys.shape[0], keys.shape[2], self.config.hidden_size)
        cache = _make_cache(past_key_values, cross)
        result = self._run_decoder(input_ids, encoded, mask, cache)
        return {"logits": result.logits, "present": _pairs(cache.self_attention_cache)}

    @torch.no_grad()
    def batch(self, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the inputs of this part, with the first tokens in the KV cache."""
        encoder = EncoderPart(self.model).eval()
        cross, ids = encoder(**encoder.batch(batch))["cross"], batch["decoder_input_ids"]
        ids = nn.functional.pad(
            ids, (0, max(0, CACHED_TOKENS + 2 - ids.shape[1])), value=int(ids[0, 0])
        )
        masks = (
            {"encoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        )
        keys = cross[0]["key"]
        empty = keys.new_zeros(len(keys), keys.shape[1], 0, keys.shape[3])
        start = [{"key": empty, "value": empty} for _ in cross]
        past = self(ids[:, :CACHED_TOKENS], start, cross, **masks)["present"]
        return {
            "input_ids": ids[:, CACHED_TOKENS:],
            "past_key_values": past,
            "cross": cross,
            **masks,
        }

    def dynamic(self, collate: Any) -> Sizes:
        """Return the dynamic dimensions; the encoder's length is one if it is a text's length."""
        varies = collate.dynamic.get("attention_mask", {}).get(1) == "sequence"
        return {
            "input_ids": {0: "batch", 1: "sequence"},
            "past_key_values": {0: "batch", 2: "past"},
            "cross": {0: "batch", 2: "length"} if varies else {0: "batch"},
            "encoder_attention_mask": {0: "batch", 1: "length"} if varies else {0: "batch"},
        }


def _make_cache(past: Sequence[Pair], cross: Sequence[Pair]) -> Any:
    """Return the cache of transformers with self-attention and cross-attention pairs."""
    library = require("transformers", "an encoder-decoder model", CaptureError)
    parts = library.DynamicCache(), library.DynamicCache()
    for part, pairs in zip(parts, (past, cross), strict=True):
        for layer, pair in enumerate(pairs):
            part.update(pair["key"], pair["value"], layer)
    cache = library.EncoderDecoderCache(*parts)
    cache.is_updated = dict.fromkeys(range(len(cross)), True)
    return cache


def _pairs(cache: Any) -> list[dict[str, torch.Tensor]]:
    return [{"key": layer.keys, "value": layer.values} for layer in cache.layers]


def part_for_task(task: str | None) -> type[_Part] | None:
    """Return the part that a task names by its ending ("-encoder", "-decoder"), or None."""
    ending = (task or "").rpartition("-")[2]
    return {"encoder": EncoderPart, "decoder": DecoderPart}.get(ending)


@dataclass(frozen=True)
class PartCollator:
    """Collates batches of the whole model into the inputs of one part."""

    collate: Collator
    part: EncoderPart | DecoderPart

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        return self.part.batch(self.collate(rows))

    @property
    def dynamic(self) -> Sizes:
        return self.part.dynamic(self.collate)
