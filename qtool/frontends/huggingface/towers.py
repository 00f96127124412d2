"""The two towers of CLIP and SigLIP, each a model of its own: of texts, or of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qtool.core.errors import CaptureError
from qtool.core.remedies import Omission

TOWERS = {"text-feature-extraction": "Text", "image-feature-extraction": "Vision"}
"""Task -> part of the name of a class of transformers."""


def tower_class(library: Any, config: Mapping[str, Any], task: str) -> Any:
    """Return the class of transformers for a tower, with the projection where it has one.

    Args:
        library: transformers.
        config: configuration of the whole model.
        task: key of `TOWERS`.

    Raises:
        CaptureError: the model has no towers.
    """
    names = config.get("architectures")
    whole = str(names[0]) if isinstance(names, list) and names else ""
    start = f"{whole.removesuffix('Model')}{TOWERS[task]}Model"
    for name in (f"{start}WithProjection", start):
        if whole.endswith("Model") and hasattr(library, name):
            return getattr(library, name)
    raise CaptureError(
        f"{whole or 'the model'} has no tower of its own for {task}, as CLIP and SigLIP have",
        Omission("--task", "leave out {}"),
    )


def tower_of(model: Any, config: Any) -> str:
    """Return "text" or "vision" if a model is that tower of a folder's model, "" for others.

    Args:
        model: as it was loaded.
        config: configuration in the folder.
    """
    names = config.get("architectures") if isinstance(config, dict) else None
    whole = str(names[0]) if isinstance(names, list) and names else ""
    kind = type(model).__name__.removesuffix("WithProjection")
    starts = {f"{whole.removesuffix('Model')}{part}Model": part.lower() for part in TOWERS.values()}
    return starts.get(kind, "")
