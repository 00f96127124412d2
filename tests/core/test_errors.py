"""The errors: one family, documented as the tree it is."""

import inspect
import re

import pytest

from qtool.core import errors
from qtool.core.errors import QtoolError

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
