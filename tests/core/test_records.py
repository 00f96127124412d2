"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pytest

from qtool.core.json_schema import json_schema
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
    assert to_json({"b": [float("nan"), 1.5]}) == {"b": [None, 1.5]}


class Pair(NamedTuple):
    layer: str
    db: float


@dataclass(frozen=True)
class Result:
    """A result.

    Attributes:
        float_: of the float
            model.
        pairs: of layers.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("total",)

    float_: float | None
    pairs: tuple[Pair, ...]
    secret: int = field(default=0, metadata={"json": False})

    @property
    def total(self) -> int:
        """Number of pairs."""
        return len(self.pairs)


def test_properties_and_named_tuples_are_written_and_described():
    value = Result(1.0, (Pair("conv", 2.0),))
    written = {"float": 1.0, "pairs": [{"layer": "conv", "db": 2.0}], "total": 1}
    assert to_json(value) == written
    assert from_json(Result, written) == value
    schema = json_schema(Result)
    assert list(schema["properties"]) == list(written) == schema["required"]
    texts = [p.get("description") for p in schema["properties"].values()]
    assert texts == ["of the float model.", "of layers.", "Number of pairs."]
    assert schema["properties"]["pairs"]["items"] == {"$ref": "#/$defs/Pair"}
    assert schema["$defs"]["Pair"]["properties"]["db"] == {"type": ["number", "null"]}


@pytest.mark.parametrize(
    "damage",
    [
        {"pair": [1]},
        {"pair": "1x"},
        {"pair": [True, "x"]},
        {"pair": [2**63, "x"]},
        {"pair": [1, "\ud800"]},
        {"many": [{"name": 3, "value": 1}]},
        {"many": [{"name": "a", "value": "1"}]},
        {"many": [{"name": "a", "value": float("inf")}]},
        {"many": [{"name": "a", "value": 10**400}]},
        {"many": {}},
        {"words": {"\ud800": "v"}},
        {"words": [["k", "v"]]},
    ],
    ids=repr,
)
def test_damaged(damage):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError, OverflowError)):
        from_json(Outer, to_json(FULL) | damage)


def test_missing_field():
    with pytest.raises(KeyError):
        from_json(Inner, {"name": "a"})


def test_a_missing_field_has_its_default():
    @dataclass(frozen=True)
    class Grown(Inner):
        unit: str = "ms"

    assert from_json(Grown, {"name": "a", "value": 1.0}) == Grown("a", 1.0, "ms")
