"""Nested arguments have the names of their paths."""

import torch

from qtool.core.data import Batch
from qtool.core.data.named_tensors import named_leaves, nested_arguments

NAMES = ["ids", "past.0.key", "past.0.value"]
A, B, C = (torch.full((2,), float(i)) for i in range(3))


def test_by_position_by_name_and_by_a_former_name() -> None:
    pair = {"value": C, "key": B}
    for batch in (
        Batch((A, [{"key": B, "value": C}])),
        Batch((A,), {"past": [pair]}),
        Batch((), {"past": (pair,), "ids": A, "labels": None}),
        Batch((), {"past_0_key": B, "past_0_value": C, "ids": A}),
    ):
        leaves = named_leaves(batch, NAMES)
        assert {n: leaves[n] for n in NAMES} == {"ids": A, "past.0.key": B, "past.0.value": C}


def test_nested_arguments() -> None:
    flat = {"ids": 0, "past.0.key": 1, "past.0.value": 2, "a.b": 3}
    expected = {"ids": 0, "past": [{"key": 1, "value": 2}], "a.b": 3}
    assert nested_arguments(flat, ["ids", "past"]) == expected
    eleven = {f"xs.{i}": i for i in range(11)}
    assert nested_arguments(eleven, ["xs"]) == {"xs": list(range(11))}
    assert nested_arguments({"xs.1": 1}, ["xs"]) == {"xs": {"1": 1}}
