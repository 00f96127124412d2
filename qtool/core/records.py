"""Frozen dataclasses to JSON and back.

Tuples become lists, mappings objects, Enum members their values. Numbers that are not finite become
null, since JSON cannot represent them; null of a float field is read as NaN, of others as None.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples, mappings, numbers and text as an argument of `json.dumps`."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_build(arguments[0], v) for v in value)
        return tuple(_build(a, v) for a, v in zip(arguments, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {k: _build(arguments[1], v) for k, v in value.items()}
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]  # a dataclass type, not an instance
        stored = [f.name for f in fields(kind) if f.name in value or not _has_default(f)]
        return kind(**{name: _build(hints[name], value[name]) for name in stored})  # type: ignore[operator]  # as above
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return float("nan") if value is None else float(value)
    if kind in (int, str, bool) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value
