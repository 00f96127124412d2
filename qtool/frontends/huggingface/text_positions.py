"""How many tokens of a text a model has positions for."""

from __future__ import annotations

from typing import Any

from torch import nn

from qtool.core.attributes import attribute

_TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Last names of the modules that hold learned positions, in models of transformers."""
_NOT_OF_TEXTS = ("vision", "visual", "image", "audio")


def text_positions(model: Any) -> int | None:
    """Return the most tokens of a text that a model takes; None where nothing limits them.

    A file with a KV cache has tables of rotary angles for the positions that the model was made
    for; learned positions end with their table. Other positions are computed for any length.
    """
    cached = attribute(model, "positions")
    limits = [cached] if isinstance(cached, int) and cached > 0 else []
    if isinstance(model, nn.Module):
        limits += [
            _rows(module)
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in _TABLES
            and isinstance(module, nn.Embedding)
            and not any(word in name for word in _NOT_OF_TEXTS)
        ]
    return min(limits, default=None)


def _rows(table: nn.Embedding) -> int:
    """Return the rows for tokens: BART's table begins with two others, RoBERTa's after padding."""
    offset = getattr(table, "offset", None)
    if offset is None:
        offset = 0 if table.padding_idx is None else table.padding_idx + 1
    return table.num_embeddings - int(offset)
