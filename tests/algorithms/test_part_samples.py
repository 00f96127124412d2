"""Samples of a part of a network keep their two sides together."""

from __future__ import annotations

import torch
from torch import nn

import qtool
from qtool.algorithms.part_samples import PartBatch, choose_samples, float_side, join_batches
from qtool.core.data import Batch

ROWS = torch.arange(6.0).reshape(3, 2)


def test_samples_of_both_sides() -> None:
    graph = qtool.capture_model(nn.Linear(2, 2).eval(), ROWS, {"input": {0: "n"}}).graph
    both = PartBatch((ROWS,), {}, Batch((ROWS * 2,)))
    chosen = choose_samples(graph, both, torch.tensor([2, 0]))
    assert torch.equal(chosen.args[0][:, 0], torch.tensor([4.0, 0.0]))
    joined = join_batches(graph, [chosen, both])
    assert torch.equal(float_side(joined).args[0], 2 * joined.args[0])
    assert len(joined.args[0]) == 5
    halved = joined.map_tensors(lambda t: t / 2)
    assert torch.equal(float_side(halved).args[0], 2 * halved.args[0])
    plain = join_batches(graph, [Batch((ROWS,)), choose_samples(graph, Batch((ROWS,)), slice(1))])
    assert type(plain) is Batch
    assert float_side(plain) is plain
