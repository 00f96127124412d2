"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from qtool.core.records import from_json, to_json


@dataclass(frozen=True)
class Inner:
    name: str
    value: float | None


@dataclass(frozen=True)
class Outer:
    many: tuple[Inner, ...]
    pair: tuple[int, str]
    maybe: Inner | None
    words: dict[str, str]


FULL = Outer((Inner("a", 1.0), Inner("b", None)), (1, "x"), Inner("c", 2.0), {"k": "v"})
BARE = Outer((), (0, ""), None, {})


@pytest.mark.parametrize("value", [FULL, BARE], ids=["full", "bare"])
def test_round_trip(value):
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


def test_infinite_is_null():
    assert to_json(Inner("a", float("inf")))["value"] is None


@pytest.mark.parametrize("damage", [{"pair": [1]}, {"many": [{"name": 3, "value": 1}]}])
def test_damaged(damage):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(Outer, to_json(FULL) | damage)


def test_missing_field():
    with pytest.raises(KeyError):
        from_json(Inner, {"name": "a"})


def test_a_missing_field_has_its_default():
    @dataclass(frozen=True)
    class Grown(Inner):
        unit: str = "ms"

    assert from_json(Grown, {"name": "a", "value": 1.0}) == Grown("a", 1.0, "ms")
