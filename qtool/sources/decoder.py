"""Causal language models of transformers with their cache as tensors, prefill and step in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtool.errors import CaptureError
from qtool.sources.encode import Encode
from qtool.sources.rows import Row

__all__ = ["DYNAMIC", "Continued", "Decoder"]

DYNAMIC: Mapping[str, Mapping[int, str]] = {
    "input_ids": {0: "batch", 1: "sequence"},
    "attention_mask": {0: "batch", 1: "total"},
    "past_key_values": {0: "batch", 2: "past"},
}
"""The sizes of the inputs that vary; total is past and sequence."""

PAST = 4  # tokens of a text that a batch of it has in its cache
Pair = Mapping[str, torch.Tensor]


class _Cache:
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


class Decoder(nn.Module):
    """A causal language model as one graph for the prompt and for each further token.

    Positions are counted over the tokens that the mask lets through, and a token sees those up to
    itself: so texts may be padded on either side.

    Attributes:
        config: of the model.
    """

    def __init__(self, model: Any) -> None:
        """Raises CaptureError: a layer sees the last tokens alone, which the mask does not say."""
        super().__init__()
        self.config: Any = model.config
        kinds = set(getattr(self.config.get_text_config(), "layer_types", None) or ())
        if odd := sorted(kinds - {"full_attention"}):
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
        cache, length = _Cache(past_key_values), input_ids.shape[1]
        total = cache.get_seq_length() + length
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, total - length :]
        own = torch.arange(length, device=input_ids.device) + (total - length)
        every = torch.arange(total, device=input_ids.device)
        seen = (every[None, :] <= own[:, None])[None] & (attention_mask[:, None, :] > 0)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
        result = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        return {"logits": result.logits, "present": cache.present}

    @torch.no_grad()
    def continued(self, ids: torch.Tensor, mask: torch.Tensor, past: int) -> dict[str, Any]:
        """The inputs of a call on [batch, tokens] of which the first ones are in the cache."""
        cache = self(ids[:, :past], mask[:, :past], ())["present"]
        return {"input_ids": ids[:, past:], "attention_mask": mask, "past_key_values": cache}


@dataclass(frozen=True)
class Continued:
    """Texts as a decoder reads them: their first tokens are in the cache already."""

    encode: Encode
    model: Decoder

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        made = self.encode(rows)
        ids, mask = made["input_ids"], made["attention_mask"]
        if (short := PAST + 2 - ids.shape[1]) > 0:
            ids = nn.functional.pad(ids, (0, short), value=int(ids[0, 0]))
            mask = nn.functional.pad(mask, (0, short))
        return self.model.continued(ids, mask, PAST)

    @property
    def dynamic(self) -> Mapping[str, Mapping[int, str]]:
        return DYNAMIC
