from typing import Any

import pytest

from qtool.core.errors import DataError
from qtool.frontends.named_objects import evaluate_call, is_call, parse_call
from tests.named_cases import cases


@cases(
    "source, name, args, kwargs",
    ("a.b:f()", "a.b:f", [], {}),
    ("a:f(1, 'x', size=(2, 3))", "a:f", [1, "x"], {"size": (2, 3)}),
    (
        "a:B.c(weights=None, deep={'n': [1.5]})",
        "a:B.c",
        [],
        {"weights": None, "deep": {"n": [1.5]}},
    ),
)
def test_calls(source: str, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert is_call(source)
    assert parse_call(source, DataError) == (name, args, kwargs)


@pytest.mark.parametrize(
    "source",
    ["a:f(g())", "a:f(open)", "a:f(x for x in y)", "a:f(1", "a:(f)", "a:" + "f(" * 500 + ")"],
)
def test_what_is_no_call_with_literals(source: str) -> None:
    with pytest.raises(DataError, match="cannot read the call"):
        parse_call(source, DataError)


def test_a_call_is_made() -> None:
    assert evaluate_call("fractions:Fraction(3, 4)", DataError) * 4 == 3
    with pytest.raises(DataError, match=r"calling fractions:Fraction\(1, 0\) failed: ZeroDivision"):
        evaluate_call("fractions:Fraction(1, 0)", DataError)


def test_names_are_no_calls() -> None:
    assert not is_call("package.module:factory")
