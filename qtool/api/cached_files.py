"""A file with a KV cache and a float model that was loaded without one do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qtool.backends.formats import open_model
from qtool.core.errors import DataError
from qtool.core.random_inputs import is_cache
from qtool.core.remedies import Argument
from qtool.evaluation.model_inputs import describe_input
from qtool.frontends.huggingface.returned_cache import cache_note


def check_cached(file: str | Path, model: Any) -> None:
    """Check that a language model was loaded with the KV cache of its file, before it is captured.

    Args:
        file: the file.
        model: as it was loaded.

    Raises:
        DataError: it has none, and the file has.
    """
    if cache_note(model) is None:
        return
    if any(is_cache(describe_input(each)) for each in open_model(file).inputs):
        raise DataError(
            f"{file} has a KV cache as inputs, and the float model has none",
            Argument("--task", "text-generation-with-past", "load that with {}, too"),
        )
