"""Frozen dataclasses to JSON and back.

Named tuples and mappings become objects, other tuples lists, Enum members their values. Numbers
that are not finite become null, since JSON cannot represent them; null of a float field is read as
NaN, of others as None. A field `float_` is written as "float". Properties that a class lists in
`JSON_PROPERTIES` are written as well; a class with `JSON_NAMES` is written as these fields and
properties alone; a class with `JSON_FORM`, a description, has a form of its
own, from its `to_json`. `json_fields` describes the result, of docstrings. What is read is checked:
anybody may have written it.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_LARGEST = 2**63  # of integers; larger ones are no number of anything, and overflow a float


def json_field_names(kind: Any) -> list[str]:
    """Return the fields of a dataclass that are written: those of `JSON_NAMES`, or all but those
    with metadata json=False."""
    names = getattr(kind, "JSON_NAMES", ())
    return list(names) or [f.name for f in fields(kind) if f.metadata.get("json", True)]


def json_properties(kind: type) -> tuple[str, ...]:
    """Return the properties that are written in addition to the fields."""
    return getattr(kind, "JSON_PROPERTIES", ())


def key_of(name: str) -> str:
    """Return the key of a field, whose name has an underscore where it is a word of Python."""
    return name.removesuffix("_")


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples, mappings, numbers and text as an argument of `json.dumps`."""
    if hasattr(type(value), "JSON_FORM"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        names = (*json_field_names(type(value)), *json_properties(type(value)))
        return {key_of(name): to_json(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: to_json(v) for name, v in value._asdict().items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class JsonRecord:
    """A dataclass that commands print as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and the properties in JSON_PROPERTIES, for `json.dumps`."""
        fields: dict[str, Any] = to_json(self)
        return fields


def from_json(kind: type[T], value: Any) -> T:
    """Return the dataclass of a `to_json` value.

    Raises:
        KeyError: a field without a default is missing.
        TypeError: a value has another type.
        ValueError: a value is invalid.
    """
    record: T = _build(kind, value)
    return record


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _build(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _build(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is no list")
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_build(arguments[0], v) for v in value)
        return tuple(_build(a, v) for a, v in zip(arguments, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {_build(str, k): _build(arguments[1], v) for k, v in value.items()}
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]  # a dataclass type, not an instance
        keys = {f.name: key_of(f.name) for f in fields(kind)}
        stored = [f.name for f in fields(kind) if keys[f.name] in value or not _has_default(f)]
        return kind(**{name: _build(hints[name], value[keys[name]]) for name in stored})  # type: ignore[operator]  # as above
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named one
        return kind(**{name: _build(hint, value[name]) for name, hint in _hints(kind).items()})
    if kind is float:
        return float("nan") if value is None else _number(value)
    if kind in (int, str, bool):
        return _plain(kind, value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not math.isfinite(value) or abs(value) >= _LARGEST**2:
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _plain(kind: type, value: Any) -> Any:
    """Return a number or text; lone surrogates are no text, which no file could hold."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError(f"{value!r} is too large")
    return value


def is_record(kind: Any) -> bool:
    """Return whether values of a type are written as objects with fixed keys."""
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def json_fields(kind: type) -> Mapping[str, tuple[Any, str]]:
    """Return key -> (type, meaning) of the object that a class is written as."""
    texts = attribute_texts(kind)
    names = json_field_names(kind) if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]  # a NamedTuple
    hints, entries = _hints_of(kind, names), {}
    for name in (*names, *json_properties(kind)):
        getter = getattr(inspect.getattr_static(kind, name, None), "fget", None)
        if getter is None:
            entries[key_of(name)] = (hints[name], texts.get(name, ""))
            continue
        text = inspect.cleandoc(getter.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        entries[key_of(name)] = (get_type_hints(getter)["return"], text)
    return entries


def _hints_of(kind: type, names: Sequence[str]) -> dict[str, Any]:
    """Return the types of some fields; those of others need not be imported."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        own = {n: a for n, a in vars(base).get("__annotations__", {}).items() if n in names}
        of_base = {"__annotations__": own, "__module__": base.__module__}
        hints |= get_type_hints(type(base.__name__, (), of_base))
    return hints


def summary(kind: type) -> str:
    """Return the first sentence of a class's docstring."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


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
