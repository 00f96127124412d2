"""Small configurations of transformers that are wide enough to show what quantization costs."""

from __future__ import annotations

from typing import Any

__all__ = ["transformer_sizes"]


def transformer_sizes(vocabulary: int, width: int) -> dict[str, Any]:
    """Options of a configuration. The libraries' spread of weights, 0.02, is for wider layers:
    what attention does would not be seen."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 64,
        "initializer_range": width**-0.5,
    }
