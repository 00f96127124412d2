"""The errors: one family, documented as the tree it is."""

import inspect
import re

import pytest

from qtool.core import errors
from qtool.core.errors import QtoolError, describe

FAMILY = [e for _, e in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", FAMILY)
def test_family(error: type[Exception]) -> None:
    assert issubclass(error, QtoolError)
    assert error.__doc__
    assert str(error("what, where, what to do")) == "what, where, what to do"


def test_the_tree_in_the_documentation_is_complete() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"^(?:[|`]-- )?(\w+Error)", errors.__doc__, re.MULTILINE))
    assert drawn == {e.__name__ for e in FAMILY}


def test_an_error_is_described_in_one_line_without_the_place_in_a_graph() -> None:
    error = RuntimeError("sizes differ\n (8 and 12)\n\nWhile executing %add\nOriginal traceback: x")
    assert describe(error) == "RuntimeError: sizes differ (8 and 12)"
