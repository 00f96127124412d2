"""Conditions on sizes in words."""

import pytest
import sympy  # type: ignore[import-untyped]  # it ships no type information
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

import qtool
from qtool.frontends.torch.size_sentences import condition_sentence
from tests.passes.differential import Function

S, T = sympy.symbols("s0 s1", integer=True, positive=True)
CASES = {
    "blocks": (sympy.Ne(1 + FloorDiv(S - 1, 32), 1), "is 33 or more"),
    "multiples": (sympy.Eq(Mod(S, 2), 0), "is a multiple of 2"),
    "rounded": (sympy.Eq(640 * FloorDiv(S, 640), S), "is a multiple of 640"),
    "no multiples": (sympy.Ne(Mod(S, 32), 0), "is no multiple of 32"),
    "remainder": (sympy.Eq(Mod(S, 3), 1), "is 3n + 1 for a whole n"),
    "one": (sympy.Eq(S, 8), "is 8"),
    "all but one": (sympy.Ne(S, 7), "is not 7"),
    "at most": (S <= 100, "is 100 or less"),
    "both ends": (sympy.Or(S < 4, S > 9), "is 3 or less or 10 or more"),
    "near the example": (sympy.Eq(FloorDiv(S, 4), 160), "is 640 to 643"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_condition_on_one_size(name: str) -> None:
    condition, words = CASES[name]
    graph = qtool.capture_model(Function(lambda x: x + 1).eval(), torch.zeros(2, 640)).graph
    graph.dims = {"s0": "time", "s1": "batch"}
    graph.inputs = (type(graph.inputs[0])("x", "float32", ("batch", "time")),)
    place = "dimension 1 (time) of input 'x'"
    start = f"the file is correct only where {place} {words}: "
    assert condition_sentence(condition, graph).startswith(start)
    both = condition_sentence(sympy.Eq(S, 2 * T), graph)
    assert f"time == (2*batch) ({place}, dimension 0 (batch) of input 'x')" in both
