"""A slice of the cases that the onnx package ships: each is right, or refused in one sentence."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks.onnx_corpus import Case, Result, cases, sort

OPERATORS = ("GRU", "If", "LayerNormalization", "Loop", "PRelu", "Resize", "SequenceInsert", "TopK")

OF_SEQUENCES = ("If", "Loop", "SequenceInsert")
"""Operators most of whose cases have sequences or optional tensors, which no model of ours has."""


def of(operator: str) -> list[Case]:
    """Its own cases, without the models of the package."""
    return [c for c in cases(operator=operator) if c.name.startswith("test_")]


@pytest.mark.filterwarnings("ignore")  # numpy's, in the formulas of onnx
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_is_right_or_refused(operator: str) -> None:
    results = [sort(case) for case in of(operator)]
    assert not [r for r in results if r.kind in ("wrong", "traceback")]
    kinds = Counter(r.kind for r in results)
    if operator in OF_SEQUENCES:
        assert all("tensor" in r.why for r in results if r.kind == "refused")
    else:
        assert kinds["read"] + kinds["kept"] > kinds["refused"]
    assert all(len(r.why.splitlines()) < 2 for r in results)


@pytest.mark.filterwarnings("ignore")  # numpy's, in the formulas of onnx
def test_a_case_is_captured() -> None:
    case = of("TopK")[0]
    assert sort(case, capture=True) == Result(case.name, "kept")
    broken = sort(replace(case, model=case.model[:-9]))
    assert (broken.kind, "not a" in broken.why) == ("refused", True)


def test_each_operator_has_its_own_cases() -> None:
    """onnx collects its cases once in a process."""
    names = [{case.name for case in of(operator)} for operator in OPERATORS]
    assert all(names)
    assert not any(one & other for one, other in combinations(names, 2))
