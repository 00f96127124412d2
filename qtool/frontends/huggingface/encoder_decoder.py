"""Encoder-decoder models of transformers as two graphs: one reads, the other writes.

What reads gives the keys and values that each layer of the decoder looks at, so that they are
computed once. What writes takes them with its own cache, as a causal language model does.
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
from qtool.frontends.optional_packages import require

CACHED_TOKENS = 4  # tokens of a text that a batch of it has in its cache
Pair = Mapping[str, torch.Tensor]
Sizes = Mapping[str, Mapping[int, str]]


class _Part(nn.Module):
    """
    Attributes:
        config: of the model.
    """

    def __init__(self, model: Any) -> None:
        """Raises CaptureError: the model has no encoder and decoder."""
        super().__init__()
        self.config: Any = model.config
        if not self.config.is_encoder_decoder:
            raise CaptureError(f"{type(model).__name__} is no encoder-decoder model")
        self.model = model

    def _run_decoder(self, ids: torch.Tensor, read: torch.Tensor, mask: Any, cache: Any) -> Any:
        return self.model(
            encoder_outputs=(read,),
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )


class EncoderPart(_Part):
    """The encoder, and what the decoder's layers make of it."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Returns "cross": for each layer of the decoder a "key" and a "value", float [batch,
        heads, length, width]."""
        named = {"input_ids": input_ids, "attention_mask": attention_mask}
        named |= {"input_features": input_features, "input_values": input_values}
        given = {name: value for name, value in named.items() if value is not None}
        read = self.model.get_encoder()(**given)[0]
        start = torch.full((read.shape[0], 1), self._start, device=read.device)
        cache = _make_cache((), ())
        self._run_decoder(start, read, None, cache)
        return {"cross": _pairs(cache.cross_attention_cache)}

    @property
    def _start(self) -> int:
        found = getattr(self.config, "decoder_start_token_id", None)
        return int(self.config.pad_token_id if found is None else found)

    def batch(self, made: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {name: t for name, t in made.items() if not name.startswith("decoder_")}

    def dynamic(self, encode: Any) -> Sizes:
        return {n: s for n, s in encode.dynamic.items() if not n.startswith("decoder_")}


class DecoderPart(_Part):
    """The decoder. All texts of a batch begin together."""

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: Sequence[Pair],
        cross: Sequence[Pair],
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """
        Args:
            input_ids: int64 [batch, sequence]; the first of all is the token that a text begins
            with. past_key_values: for each layer a "key" and a "value", float [batch, heads, past,
            width]. cross: what was read. encoder_attention_mask: int64 [batch, length].

        Returns: "logits" [batch, sequence, tokens], and "present" as past_key_values, of past and
            sequence.
        """
        keys = cross[0]["key"]
        read = keys.new_zeros(
            keys.shape[0], keys.shape[2], self.config.hidden_size
        )  # not looked at
        cache = _make_cache(past_key_values, cross)
        result = self._run_decoder(input_ids, read, encoder_attention_mask, cache)
        return {"logits": result.logits, "present": _pairs(cache.self_attention_cache)}

    @torch.no_grad()
    def batch(self, made: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """A batch of which the first tokens are in the cache."""
        reading = EncoderPart(self.model).eval()
        cross, ids = reading(**reading.batch(made))["cross"], made["decoder_input_ids"]
        ids = nn.functional.pad(
            ids, (0, max(0, CACHED_TOKENS + 2 - ids.shape[1])), value=int(ids[0, 0])
        )
        masks = (
            {"encoder_attention_mask": made["attention_mask"]} if "attention_mask" in made else {}
        )
        keys = cross[0]["key"]
        empty = keys.new_zeros(len(keys), keys.shape[1], 0, keys.shape[3])
        begun = [{"key": empty, "value": empty} for _ in cross]
        past = self(ids[:, :CACHED_TOKENS], begun, cross, **masks)["present"]
        return {
            "input_ids": ids[:, CACHED_TOKENS:],
            "past_key_values": past,
            "cross": cross,
            **masks,
        }

    def dynamic(self, encode: Any) -> Sizes:
        """Of what is read the length varies where that of the encoder's input does and is told."""
        varies = encode.dynamic.get("attention_mask", {}).get(1) == "sequence"
        return {
            "input_ids": {0: "batch", 1: "sequence"},
            "past_key_values": {0: "batch", 2: "past"},
            "cross": {0: "batch", 2: "length"} if varies else {0: "batch"},
            "encoder_attention_mask": {0: "batch", 1: "length"} if varies else {0: "batch"},
        }


def _make_cache(past: Sequence[Pair], cross: Sequence[Pair]) -> Any:
    """What the layers call: keys and values of what was written, and of what was read."""
    library = require("transformers", "an encoder-decoder model", CaptureError)
    parts = library.DynamicCache(), library.DynamicCache()
    for part, pairs in zip(parts, (past, cross), strict=True):
        for layer, pair in enumerate(pairs):
            part.update(pair["key"], pair["value"], layer)
    found = library.EncoderDecoderCache(*parts)
    found.is_updated = dict.fromkeys(range(len(cross)), True)
    return found


def _pairs(cache: Any) -> list[dict[str, torch.Tensor]]:
    return [{"key": layer.keys, "value": layer.values} for layer in cache.layers]


def part_for_task(task: str | None) -> type[_Part] | None:
    """The half that a task asks for by how its name ends."""
    ending = (task or "").rpartition("-")[2]
    return {"encoder": EncoderPart, "decoder": DecoderPart}.get(ending)


@dataclass(frozen=True)
class PartCollator:
    """Batches of a whole model as one of its halves takes them."""

    encode: Collator
    part: EncoderPart | DecoderPart

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        return self.part.batch(self.encode(rows))

    @property
    def dynamic(self) -> Sizes:
        return self.part.dynamic(self.encode)
