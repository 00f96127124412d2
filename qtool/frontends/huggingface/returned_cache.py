"""Models of transformers that return a KV cache: captured without it.

`use_cache` is true in most configurations, and the cache is no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtool.core.argument_names import argument
from qtool.core.data import Batch
from qtool.core.user_code import attribute
from qtool.frontends.own_models import TaskModel

_CACHES = frozenset(
    {"past_key_values", "cache", "past_buckets_states", "cache_params", "mems", "state"}
)
"""Names of caches among the outputs of transformers; `cache` since 5.24."""

NOTE = (
    "the model returns a cache of past tokens, which is left out; for a file with one, load the "
    "model's folder with the task text-generation-with-past (text2text-generation-decoder for an "
    "encoder-decoder)"
)


@contextmanager
def without_cache(model: nn.Module, example: Batch) -> Iterator[tuple[str, ...]]:
    """Make a model of transformers return no cache, and yield a note on it.

    Its configuration is restored afterwards. A model that returns none, or gets one, is unchanged.
    """
    parts = _caching_parts(model) if _returns_cache(model, example) else []
    for config in parts:
        config.use_cache = False
    try:
        yield (NOTE,) if parts else ()
    finally:
        for config in parts:
            config.use_cache = True


def disable_cache(model: nn.Module) -> nn.Module:
    """Make the model return no KV cache, which is not a tensor."""
    for config in _caching_parts(model):
        config.use_cache = False
    return model


def _caching_parts(model: nn.Module) -> list[Any]:
    """Return the configurations of a model and its parts that ask for a cache."""
    configs = [attribute(part, "config") for part in model.modules()]
    return [c for c in configs if attribute(c, "use_cache") is True]


def _returns_cache(model: nn.Module, example: Batch) -> bool:
    if not type(model).__module__.startswith("transformers.") or not _caching_parts(model):
        return False
    if "use_cache" in example.kwargs or _CACHES & example.kwargs.keys():
        return False
    try:
        with torch.no_grad():
            outputs = model(*example.args, **example.kwargs)
    except Exception:  # noqa: BLE001  # the capture says what is wrong
        return False
    return isinstance(outputs, Mapping) and bool(_CACHES & outputs.keys())


def cache_note(model: Any) -> str | None:
    """Return a note on a language model that is captured without its KV cache; else None."""
    config = attribute(model, "config")
    named = isinstance(attribute(config, "model_type"), str) and not isinstance(model, TaskModel)
    if not named or not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    with_past = argument("--task", "text-generation-with-past")
    return f"the file has no KV cache, with which texts are written; {with_past} makes one"
