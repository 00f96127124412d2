"""Sizes of the KV cache of a decoder, which onnxruntime-genai's configuration next to it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qtool.core.paths import is_file

_CONFIG, _PAST = "genai_config.json", "past"
_SIZES = {1: "num_key_value_heads", 3: "head_size"}
"""Axis of keys and values -> its size in the configuration."""


def with_cache_sizes(
    path: str | Path, name: str, shape: Sequence[int | str | None]
) -> tuple[int | str | None, ...]:
    """Return the shape of an input, whose number of heads and their width are known.

    Args:
        path: the ONNX file.
        name: name of the input; one of a KV cache is [samples, heads, tokens, width].
        shape: as the file has it.
    """
    open_axes = [axis for axis in _SIZES if len(shape) == 4 and not isinstance(shape[axis], int)]
    if not name.startswith(_PAST) or not open_axes:
        return tuple(shape)
    sizes = _decoder(Path(path).parent / _CONFIG)
    known = {axis: sizes.get(_SIZES[axis]) for axis in open_axes}
    return tuple(known[a] if isinstance(known.get(a), int) else s for a, s in enumerate(shape))


def _decoder(config: Path) -> dict[str, int]:
    """Return the entries of the decoder; {} without any that can be read."""
    if not is_file(config):
        return {}
    try:
        decoder = json.loads(config.read_text("utf-8"))["model"]["decoder"]
        return {key: decoder[key] for key in _SIZES.values()}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
