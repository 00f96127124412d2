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

from qtool.core.errors import CaptureError, DataError
from qtool.frontends.data.collators import Collator
from qtool.frontends.data.rows import Row
from qtool.frontends.huggingface.kv_cache import Pair, check_equal_lengths
from qtool.frontends.optional_packages import require
from qtool.frontends.own_models import CACHED_TOKENS, TWO_PARTS, TaskCollator, TaskModel

WITH_PAST = "-with-past"
"""Ending of tasks whose files have the KV cache as inputs and outputs."""

Sizes = Mapping[str, Mapping[int, str]]


class _Part(TaskModel):
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

    @property
    def read_for(self) -> Any:
        """The whole model."""
        return self.model

    def _run_decoder(self, ids: torch.Tensor, encoded: torch.Tensor, mask: Any, cache: Any) -> Any:
        return self.model(
            encoder_outputs=(encoded,),
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )

    def _cross(self, encoded: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Return per layer the cross-attention pair of encoder states [batch, length, width].

        The decoder reads a token for it; a graph keeps only what the pairs need.
        """
        token = getattr(self.config, "decoder_start_token_id", None)
        token = int(self.config.pad_token_id if token is None else token)
        start = torch.full((encoded.shape[0], 1), token, device=encoded.device)
        cache = _make_cache((), ())
        self._run_decoder(start, encoded, None, cache)
        return _pairs(cache.cross_attention_cache)


class MergedPart:
    """A part with the names that Optimum and transformers.js know."""


class EncoderPart(_Part):
    """The encoder, and the cross-attention keys and values of the decoder's layers."""

    def collator(self, plain: Collator) -> PartCollator:
        return PartCollator(plain, self)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the results of `_results`."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask}
        named |= {"input_features": input_features, "input_values": input_values}
        inputs = {name: value for name, value in named.items() if value is not None}
        return self._results(self.model.get_encoder()(**inputs)[0])

    def _results(self, encoded: torch.Tensor) -> dict[str, Any]:
        """Return "cross": per decoder layer a "key" and a "value", float [batch, heads, length,
        width]."""
        return {"cross": self._cross(encoded)}

    def batch(
        self,
        batch: Mapping[str, torch.Tensor],
        cached: int = 0,  # noqa: ARG002  # of the decoder
    ) -> dict[str, Any]:
        """Return the inputs of this part from a batch of the whole model."""
        return {name: t for name, t in batch.items() if not name.startswith("decoder_")}

    def dynamic(self, collate: Any) -> Sizes:
        """Return the dynamic dimensions of this part's inputs."""
        return {n: s for n, s in collate.dynamic.items() if not n.startswith("decoder_")}


class StatesEncoder(EncoderPart, MergedPart):
    """The encoder alone, for a `MergedDecoder`."""

    def _results(self, encoded: torch.Tensor) -> dict[str, Any]:
        """Return "last_hidden_state", float [batch, length, width]."""
        return {"last_hidden_state": encoded}


class DecoderPart(_Part):
    """The decoder with its KV cache. All texts of a batch start at the same position."""

    def collator(self, plain: Collator) -> PartCollator:
        return PartCollator(plain, self)

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
    def batch(
        self, batch: Mapping[str, torch.Tensor], cached: int = CACHED_TOKENS
    ) -> dict[str, Any]:
        """Return the inputs of this part, with the first `cached` tokens in the KV cache."""
        encoder = EncoderPart(self.model).eval()
        cross, ids = encoder(**encoder.batch(batch))["cross"], batch["decoder_input_ids"]
        short = max(0, cached + 2 - ids.shape[1]) if cached else 0
        ids = nn.functional.pad(ids, (0, short), value=int(ids[0, 0]))
        masks = (
            {"encoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        )
        keys = cross[0]["key"]
        empty = keys.new_zeros(len(keys), keys.shape[1], 0, keys.shape[3])
        start = [{"key": empty, "value": empty} for _ in cross]
        past = self(ids[:, :cached], start, cross, **masks)["present"] if cached else start
        return {
            "input_ids": ids[:, cached:],
            "past_key_values": past,
            "cross": cross,
            **masks,
        }

    def dynamic(self, collate: Any) -> Sizes:
        """Return the dynamic dimensions; the encoder's length is one if it is a text's length."""
        varies = collate.dynamic.get("attention_mask", {}).get(1) == "sequence"
        return {
            "input_ids": {0: "batch_size", 1: "sequence"},
            "past_key_values": {0: "batch_size", 2: "past"},
            "cross": {0: "batch_size", 2: "length"} if varies else {0: "batch_size"},
            "encoder_attention_mask": {0: "batch_size", 1: "length"}
            if varies
            else {0: "batch_size"},
        }


class MergedDecoder(DecoderPart, MergedPart):
    """The decoder with the keys and values of its cross-attention in its cache.

    Those of encoder states that the cache has not are computed, so that one graph takes the first
    call, whose cache is empty, and the next ones, where nothing is left to compute.
    """

    def forward(  # type: ignore[override]  # the encoder's output is another
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: Sequence[Mapping[str, Pair]],
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return logits and the extended KV cache.

        Args:
            input_ids: int64 [batch, sequence]; a text starts with the decoder start token.
            encoder_hidden_states: float [batch, length, width].
            past_key_values: per layer the pairs "decoder" [batch, heads, past, width] and
                "encoder" [batch, heads, encoded, width], which are empty at first.
            encoder_attention_mask: int64 [batch, length].

        Returns:
            "logits" [batch, sequence, tokens], and "present" like `past_key_values` with past +
            sequence tokens, and keys and values of all encoder states.
        """
        encoded = past_key_values[0]["encoder"]["key"].shape[2]
        cross = [
            {kind: torch.cat([pair["encoder"][kind], rest[kind]], 2) for kind in rest}
            for pair, rest in zip(
                past_key_values, self._cross(encoder_hidden_states[:, encoded:]), strict=True
            )
        ]
        own = [pair["decoder"] for pair in past_key_values]
        result = super().forward(input_ids, own, cross, encoder_attention_mask)
        present = [
            {"decoder": pair, "encoder": other}
            for pair, other in zip(result["present"], cross, strict=True)
        ]
        return {"logits": result["logits"], "present": present}

    @torch.no_grad()
    def batch(
        self, batch: Mapping[str, torch.Tensor], cached: int = CACHED_TOKENS
    ) -> dict[str, Any]:
        """Return the inputs of this part, with the first `cached` tokens, and the first states, in
        the KV cache."""
        encoder = StatesEncoder(self.model).eval()
        states = encoder(**encoder.batch(batch))["last_hidden_state"]
        inputs = DecoderPart(self.model).eval().batch(batch, cached)
        encoded = min(CACHED_TOKENS, states.shape[1] // 2)
        past = [
            {"decoder": own, "encoder": {kind: t[:, :, :encoded] for kind, t in cross.items()}}
            for own, cross in zip(inputs["past_key_values"], inputs.pop("cross"), strict=True)
        ]
        return {
            "input_ids": inputs.pop("input_ids"),
            "encoder_hidden_states": states,
            **inputs,
            "past_key_values": past,
        }

    def dynamic(self, collate: Any) -> Sizes:
        """Return the dynamic dimensions; the encoder's length is one if it is a text's length."""
        sizes = super().dynamic(collate)
        states = {**sizes["encoder_attention_mask"]}
        return {
            **{name: s for name, s in sizes.items() if name not in ("cross", "past_key_values")},
            "encoder_hidden_states": states,
            "past_key_values.decoder": sizes["past_key_values"],
            "past_key_values.encoder": {0: "batch_size", 2: "encoded"},
        }


class EncoderDecoder(TaskModel):
    """An encoder-decoder model that becomes two files, an encoder and a decoder.

    Attributes:
        model: the whole model.
        parts: name -> module.
    """

    def __init__(self, model: Any) -> None:
        """
        Raises:
            CaptureError: the model is not an encoder-decoder.
        """
        super().__init__()
        self.model = model
        self.parts = {
            "encoder": StatesEncoder(model).eval(),
            "decoder": MergedDecoder(model).eval(),
        }

    @property
    def read_for(self) -> Any:
        """Nothing: data is read for a part."""
        raise DataError(TWO_PARTS)

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse a call.

        Raises:
            CaptureError: always: the parts are called.
        """
        raise CaptureError(TWO_PARTS)


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


def part_for_task(task: str | None) -> type[EncoderPart | DecoderPart] | None:
    """Return the part that a task names by its ending ("-encoder", "-decoder"), or None."""
    return next((part for end, part in _PARTS.items() if (task or "").endswith(end)), None)


_PARTS: Mapping[str, type[EncoderPart | DecoderPart]] = {
    f"{WITH_PAST}-encoder": StatesEncoder,
    f"{WITH_PAST}-decoder": MergedDecoder,
    "-encoder": EncoderPart,
    "-decoder": DecoderPart,
}
"""Ending of a task -> the part of the model."""


@dataclass(frozen=True)
class PartCollator(TaskCollator):
    """Collates batches of the whole model into the inputs of one part."""

    model: EncoderPart | DecoderPart

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        return self.model.batch(self.collate(rows), self.cached)

    @property
    def dynamic(self) -> Sizes:
        return self.model.dynamic(self.collate)
