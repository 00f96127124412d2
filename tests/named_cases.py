"""Tables of parametrized tests with a row per case."""

from typing import Any

import pytest


def cases(names: str, *rows: Any, **options: Any) -> pytest.MarkDecorator:
    """Rows of values, as pytest names them."""
    return pytest.mark.parametrize(names, rows, **options)


def named_cases(names: str, *rows: Any, **options: Any) -> pytest.MarkDecorator:
    """Rows that begin with the name of their case; a pytest.param has its own."""
    params = [r if hasattr(r, "marks") else pytest.param(*r[1:], id=r[0]) for r in rows]
    return pytest.mark.parametrize(names, params, **options)
