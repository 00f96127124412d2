"""What a model file says next to its network: the metadata that files made from it keep."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SourceMetadata:
    """The metadata of an ONNX file that is not about its operators; empty for models of torch.

    Attributes:
        properties: `metadata_props`: class names, tokens, strides ...
        model_version: number of the model, 0 without one.
        domain: namespace of the model.
        doc_string: description of the model.
        graph_name: name of the graph.
        graph_doc_string: description of the graph.
        value_doc_strings: input or output -> its documentation.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    model_version: int = 0
    domain: str = ""
    doc_string: str = ""
    graph_name: str = ""
    graph_doc_string: str = ""
    value_doc_strings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what is not empty."""
        return {key: value for key, value in vars(self).items() if value}

    @property
    def classes(self) -> int:
        """Number of the names of classes that the properties list; 0 without."""
        texts = (self.properties[key] for key in _CLASS_NAMES if key in self.properties)
        return next(map(_count, texts), 0)


_CLASS_NAMES = ("names", "classes", "class_names", "id2label", "labels")


def _count(text: str) -> int:
    """Return the length of a list or a table in a text: JSON, Python, or names between commas."""
    with suppress(ValueError, SyntaxError, TypeError):
        return len(ast.literal_eval(text))
    return len(text.split(","))
