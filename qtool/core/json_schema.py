"""JSON Schema of what `core/records.py` writes, from the dataclasses and their docstrings."""

from __future__ import annotations

import inspect
import os
import re
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from qtool.core.records import json_field_names, json_properties, key_of

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null: a number that is not finite
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
    Any: {},
}


def json_schema(kind: type) -> Schema:
    """Return the JSON Schema of a dataclass, with those of nested classes in `$defs`."""
    classes: dict[str, Schema] = {}
    schema = _object(kind, classes)
    return {**schema, "$defs": classes} if classes else schema


def is_record(kind: Any) -> bool:
    """Return whether values of a type are written as objects with fixed keys."""
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def json_fields(kind: type) -> Mapping[str, tuple[Any, str]]:
    """Return key -> (type, meaning) of the object that a class is written as."""
    texts = attribute_texts(kind)
    hints = get_type_hints(kind)
    names = json_field_names(kind) if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]  # a NamedTuple
    entries = {key_of(name): (hints[name], texts.get(name, "")) for name in names}
    for name in json_properties(kind):
        getter = inspect.getattr_static(kind, name).fget
        text = inspect.cleandoc(getter.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        entries[key_of(name)] = (get_type_hints(getter)["return"], text)
    return entries


def summary(kind: type) -> str:
    """Return the first sentence of a class's docstring."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _object(kind: type, classes: dict[str, Schema]) -> Schema:
    properties = {}
    for key, (hint, text) in json_fields(kind).items():
        properties[key] = _described(_schema(hint, classes), text)
    return {
        "type": "object",
        "description": summary(kind),
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text} if text else schema


def _schema(hint: Any, classes: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(a, classes) for a in arguments]}
    if origin in (tuple, list):
        return _array(arguments, classes)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], classes)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and issubclass(hint, os.PathLike):
        return {"type": "string"}
    if hasattr(hint, "JSON_FORM"):
        return {"type": "object", "description": hint.JSON_FORM}
    if is_record(hint):
        if hint.__name__ not in classes:
            classes[hint.__name__] = {}  # a recursive class ends here
            classes[hint.__name__] = _object(hint, classes)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {}


def _array(arguments: tuple[Any, ...], classes: dict[str, Schema]) -> Schema:
    if len(arguments) == 2 and arguments[1] is not ...:
        return {"type": "array", "minItems": 2, "maxItems": 2}
    return {"type": "array", "items": _schema(arguments[0], classes)}


def attribute_texts(kind: type) -> dict[str, str]:
    """Return name -> text of the `Attributes:` section of a docstring, and those of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        lines = section.partition("\n\n")[0].partition("\nRaises:")[0]
        for entry in re.split(r"\n(?= {4}\S)", lines.rstrip()):
            names, _, text = entry.strip().partition(": ")
            shown = re.sub(r"\s+", " ", text)
            texts |= {name.strip(): shown for name in names.split(",")}
    return texts
