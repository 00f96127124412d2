"""Records and their summaries."""

import json
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pytest

from qtool.core.records import from_json, json_fields, to_json
from qtool.core.summary import Printed, Summarized, Summary, group_notes
from qtool.evaluation.file_contents import ModelContents
from qtool.planning.plan import QuantPlan
from qtool.verification.coverage import Coverage


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
    assert [*json_fields(Result)] == [*written]
    texts = [text for _, text in json_fields(Result).values()]
    assert texts == ["of the float model.", "of layers.", "Number of pairs."]


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


def test_rows_are_aligned_and_notes_counted() -> None:
    notes = tuple(f"sentence {word}" for word in ("one", "two", "three", "four", "five"))
    text = str(Summary("a.onnx", "int8", (("size", "1 KiB"), ("integer", "100 %")), notes))
    assert text.splitlines() == [
        "a.onnx  int8",
        "  size     1 KiB",
        "  integer  100 %",
        "  note  sentence one",
        "  note  sentence two",
        "  note  sentence three",
        "  note  and 2 more notes",
    ]


def test_notes_on_one_fact_are_one_note() -> None:
    zero = [
        f"layer{i}.bn: weights are zero in {n} of 64 channels" for i, n in enumerate((8, 64, 9))
    ]
    other = ["calibration has not settled; use more samples", "gptq: skipped after a failure"]
    assert group_notes([*zero[:1], *other, *zero[1:]]) == [
        "layer0.bn, layer1.bn, layer2.bn: weights are zero in 8 to 64 of 64 channels",
        *other,
    ]
    many = [f"l{i}: too small for a scale of 2^-60" for i in range(8)]
    assert group_notes(many) == ["l0, l1, l2 and 5 more: too small for a scale of 2^-60"]


def test_tables_are_shown_in_a_notebook_as_they_print() -> None:
    class Table(Printed):
        def __str__(self) -> str:
            return "a  b < c"

    assert Table()._repr_html_() == "<pre>a  b &lt; c</pre>"
    assert all(
        issubclass(kind, Printed) for kind in (QuantPlan, Coverage, ModelContents, Summarized)
    )


def test_a_note_of_several_lines_is_one() -> None:
    note = "int8 is slower; layers that lose most:\n  input 'x': 6 us\n  f.0: 4 us"
    (line,) = Summary("file", "", (), (note,)).lines()
    assert line[1] == "int8 is slower; layers that lose most: input 'x': 6 us; f.0: 4 us"
