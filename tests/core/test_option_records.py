"""Options are fields of records: commands, signatures and type checkers have the same ones."""

import inspect
from dataclasses import dataclass, fields
from math import inf, nan
from typing import Any

import click
import pytest
from click.testing import CliRunner
from qtool.cli.command import Command
from qtool.cli.records import record
from qtool.cli.source_options import ModelOptions

import qtool
from qtool.core import conversion_options as conversion
from qtool.core.data_options import DataKeywords
from qtool.core.limits import Range
from qtool.core.option_records import OptionRecord, option, options_of
from qtool.core.records import attribute_texts
from qtool.core.search_options import SearchGoals
from qtool.evaluation.options import GateKeywords, GenerationKeywords

FUNCTIONS: dict[str, tuple[type[Any], type[Any], set[str]]] = {
    "quantize": (qtool.QuantizeOptions, conversion.QuantizeKeywords, set()),
    "calibrate": (qtool.QuantizeOptions, conversion.QuantizeKeywords, set()),
    "quantize_by_blocks": (qtool.QuantizeOptions, conversion.QuantizeKeywords, set()),
    "gate": (qtool.GateOptions, GateKeywords, set()),
    "convert": (qtool.QuantizeOptions, conversion.ConvertKeywords, {"observer"}),
    "tune": (qtool.QuantizeOptions, conversion.TuneKeywords, {"mode", "accuracy"}),
    "load_data": (qtool.DataOptions, DataKeywords, set()),
    "generate": (qtool.GenerationOptions, GenerationKeywords, set()),
}
"""Function -> the record of its keywords, those for type checkers, and fields that it lacks."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_keywords_are_fields(name: str) -> None:
    kind, typed, lacking = FUNCTIONS[name]
    names = {field.name for field in fields(kind)} - lacking
    assert set(typed.__annotations__) == names
    parameters = inspect.signature(getattr(qtool, name)).parameters
    assert names <= parameters.keys()
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    defaults = {f.name: f.default for f in fields(kind) if f.name in names - {"accuracy"}}
    assert {n: parameters[n].default for n in defaults} == defaults


def test_a_keyword_of_another_function_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'observer'"):
        qtool.convert(None, observer="mse")


@pytest.mark.parametrize(
    "kind",
    [
        *(qtool.QuantizeOptions, qtool.FileOptions, qtool.DataOptions, qtool.ReportOptions),
        *(qtool.Goals, SearchGoals, qtool.SearchOptions, qtool.GenerationOptions, ModelOptions),
        qtool.GateOptions,
    ],
)
def test_each_option_is_explained(kind: type[Any]) -> None:
    texts = attribute_texts(kind)
    assert all(texts.get(name, "").endswith(".") for name in options_of(kind))


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (qtool.FileOptions, "min_sqnr", ["30", nan]),
        (qtool.FileOptions, "timing", [-3, inf]),
        (qtool.TuneGoals, "max_drop", [nan]),
        (qtool.TuneGoals, "min_speedup", [0, -1]),
        (qtool.TuneGoals, "confidence", [1.0]),
        (qtool.Goals, "coverage", [1.5]),
        (qtool.ReportOptions, "threads", [(0,)]),
        (qtool.ReportOptions, "batch_sizes", [(-1,), (1.5,)]),
        (qtool.GenerationOptions, "top_p", [0]),
        (qtool.GateOptions, "confidence", [0.5, 1]),
    ],
)
def test_a_number_out_of_its_range(kind: type[Any], name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(qtool.OptionError, match=rf"{kind.__name__}\.{name} is .*; give a") as e:
            kind(**{name: value})
        assert [type(remedy).__name__ for remedy in e.value.remedies] == ["CallEdit"]


@dataclass(frozen=True)
class Brew(OptionRecord):
    """How tea is made.

    Attributes:
        minutes: time to draw.
        sorts: a sort of tea. Repeatable.
        strong: no milk.
        cups: numbers of cups.
    """

    minutes: float = option(3.0, range=Range(0, 10, low_open=True))
    sorts: tuple[str, ...] | None = option(None, "sort", repeated=True, metavar="NAME")
    strong: bool = option(False)
    cups: tuple[int, ...] = option((1, 2), kind="counts")


def test_a_command_gets_the_record() -> None:
    made = list[Brew]()

    @click.command("brew", cls=Command)
    @record("brew", Brew)
    def command(brew: Brew) -> None:
        made.append(brew)

    run = CliRunner().invoke
    assert run(command, []).exit_code == 0
    words = "--sort a --sort b --strong --cups 3,3,4"
    assert run(command, words.split()).exit_code == 0
    assert made == [Brew(), Brew(sorts=("a", "b"), strong=True, cups=(3, 4))]
    assert "0.0 is not in the range 0<x<=10" in run(command, ["--minutes", "0"]).output
    text = run(command, ["--help"]).output
    assert all(said in text for said in ("Time to draw.  [default: 3.0;", "--sort NAME", "1,2]"))
    with pytest.raises(qtool.OptionError, match=r"Brew\.minutes is 11; give .* above 0 and"):
        Brew(minutes=11)
