"""A residual sum in front of a norm is one operator with it, and is computed once."""

from __future__ import annotations

import torch

from qtool.core import graph as G
from qtool.core.ops.norms import skip_rms_norm
from tests.passes.small_decoder import fused

aten = torch.ops.aten


def test_a_chain_of_sums() -> None:
    module, counts = fused("skip_rms_norm")
    assert counts == {"skip_rms_norm": 2}
    targets = [n.target for n in G.calls(module.graph)]
    assert targets.count(skip_rms_norm) == 2
    assert aten.rms_norm.default not in targets
    sums = [n for n in G.calls(module.graph) if n.target is aten.add.Tensor]
    assert not [n for n in sums if G.rank(n) == 3]
