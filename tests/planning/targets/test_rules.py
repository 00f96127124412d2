"""Conditions of kernels at their limits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qtool.core.data import Batch
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from qtool.planning.targets.rules import MIN_TABLE_SIZE, TOO_SMALL, stored_weights


@pytest.mark.parametrize(("rows", "refusal"), [(0, None), (-1, TOO_SMALL)])
def test_a_table_of_the_least_size_is_stored_as_codes(rows: int, refusal: str | None) -> None:
    model = nn.Embedding(MIN_TABLE_SIZE // 64 + rows, 64).eval()
    captured = capture_module(model, Batch((torch.zeros(2, 3, dtype=torch.int64),)))
    run_passes(captured.module, CANONICAL)
    (lookup,) = (node for node in captured.graph.nodes if node.op == "call_function")
    assert stored_weights(lookup) == refusal
