"""Times of nodes, by the names of the user's model. No test looks at how long anything takes."""

from __future__ import annotations

import pytest

from qtool.backends.model_file import OTHER
from qtool.core.errors import VerificationError
from qtool.evaluation.latency.node_times import profile_nodes
from tests.evaluation.spoiled import images


@pytest.fixture(scope="module")
def nodes(chain_files):
    return profile_nodes(chain_files, [images(4).numpy()], runs=3)


def test_layers_are_named(nodes):
    found = {n.name: n for n in nodes}
    assert {"conv.0", "conv.1", "cat", "head"} <= set(found)
    assert found["conv.1"].kernels[1].startswith("QLinearConv")
    assert "Conv" in found["conv.1"].kernels[0]
    assert all(t > 0 for t in found["conv.1"].microseconds)


def test_clamps_and_roundings_count_to_their_layer(nodes):
    names = [n.name for n in nodes if n.name != OTHER]
    assert not [n for n in names if "relu" in n.lower() or n.endswith((".quantize", ".dequantize"))]
    order = [n for n in names if n.startswith("conv.")]
    assert order == sorted(order), "in the order of the network"


def test_a_file_alone(chain_files):
    (first, *_) = profile_nodes(chain_files[:1], [images(4).numpy()], runs=1)
    assert len(first.kernels) == len(first.microseconds) == 1


def test_inputs_that_do_not_fit(chain_files):
    with pytest.raises(VerificationError, match="fails on it"):
        profile_nodes(chain_files[:1], [images(4).numpy()[:, :2]], runs=1)
