"""Copies of a model with other initializers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx


def with_initializers(
    model: onnx.ModelProto, stored: Iterable[onnx.TensorProto]
) -> onnx.ModelProto:
    """Return a copy with other initializers; those of the model are not copied."""
    bare = onnx.ModelProto()
    _copy_all_but(model, bare, "graph")
    _copy_all_but(model.graph, bare.graph, "initializer")
    bare.graph.initializer.extend(stored)
    return bare


def _copy_all_but(source: Any, into: Any, field: str) -> None:
    for known, value in source.ListFields():
        if known.name == field:
            continue
        if hasattr(value, "extend"):  # a repeated field
            getattr(into, known.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(into, known.name).CopyFrom(value)
        else:
            setattr(into, known.name, value)
