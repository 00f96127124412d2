"""Expressions of dynamic sizes, found from answers at numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from qtool.core.errors import CaptureError
from qtool.core.graph.symbolic_sizes import symbolic_sizes


def sizes(*numbers: int) -> list[Any]:
    """A shape of which every size is dynamic."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return list(mode.from_tensor(torch.zeros(numbers), static_shapes=False).shape)


FORMULAS: dict[str, Callable[[int, int], int]] = {
    "a number": lambda n, m: 7,
    "one of them": lambda n, m: m,
    "a product": lambda n, m: n * m,
    "a sum": lambda n, m: n + m,
    "twice and one more": lambda n, m: 2 * n + 1,
    "half, rounded down": lambda n, m: m // 2,
    "half, rounded up": lambda n, m: -(-m // 2),
    "windows": lambda n, m: (m - 3) // 2 + 1,
    "two thirds": lambda n, m: 2 * m // 3,
}


@pytest.mark.parametrize("name", list(FORMULAS))
def test_the_expression_holds_at_other_sizes(name: str) -> None:
    formula = FORMULAS[name]
    shape = sizes(6, 11)
    ((found,),) = symbolic_sizes(lambda given: [(formula(*given[0]),)], [shape])
    symbols = [s.node.expr for s in shape]
    for n, m in ((6, 11), (5, 8), (40, 33), (2, 64)):
        values = dict(zip(symbols, (n, m), strict=True))
        at = found if isinstance(found, int) else int(found.node.expr.subs(values))
        assert at == formula(n, m)


def test_what_nothing_fits_is_known_when_the_model_runs() -> None:
    assert symbolic_sizes(lambda given: [(given[0][0] ** 3,)], [sizes(6, 11)]) == [(None,)]


def test_what_values_decide_is_known_when_the_model_runs() -> None:
    assert symbolic_sizes(lambda given: [(None, 2)], [sizes(6, 11)]) == [(None, 2)]


def test_numbers_stay_numbers() -> None:
    assert symbolic_sizes(lambda given: [(given[0][0] + 1,)], [[3, 4]]) == [(4,)]


def test_sizes_that_do_not_go_together_are_said() -> None:
    def ask(given: Any) -> Any:
        raise CaptureError("no")

    with pytest.raises(CaptureError, match="no"):
        symbolic_sizes(ask, [sizes(6, 11)])
