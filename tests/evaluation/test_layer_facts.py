"""The layers: together they own every point, and the facts about each are those of its numbers."""

import numpy as np
import pytest
import torch

from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8_NARROW, UINT8
from qtool.evaluation.layer_facts import (
    code_limits,
    count_saturated,
    histogram_facts,
    layers_of,
    signal_and_noise,
    weight_histogram,
)
from qtool.observers.histogram import Histogram
from tests.evaluation.spoiled import chain


def params(scale, zero, qtype=UINT8, axis=None):
    return QuantParams(qtype, torch.tensor(scale), torch.tensor(zero), axis)


def test_every_point_has_one_owner():
    quantized = chain()
    owned = [name for layer in layers_of(quantized) for name in layer.points]
    assert sorted(owned) == sorted(p.name for p in quantized.plan if p.edges)
    assert len(owned) == len(set(owned))


def test_a_fused_clamp_belongs_to_its_layer():
    layers = {layer.name: layer for layer in layers_of(chain())}
    assert layers["conv.0"].tensor == "relu"
    assert layers["conv.0"].output == "relu"
    assert layers["conv.0"].weight == "conv.0.weight"
    assert next(iter(layers.values())).op == "input"
    assert layers["conv.1"].macs == 8 * 8 * 8 * 8 * 9


def test_limits_are_those_of_the_codes():
    low, high = code_limits(params([0.5, 2.0], [0, 0], INT8_NARROW, 0))
    assert low.tolist() == [-63.5, -254.0]
    assert high.tolist() == [63.5, 254.0]


@pytest.mark.parametrize(
    ("value", "saturates"), [(0.0, False), (25.5, False), (25.54, False), (25.56, True), (-1, True)]
)
def test_what_rounding_explains_does_not_saturate(value, saturates):
    assert count_saturated(torch.tensor([value]), params(0.1, 0)) == saturates


def test_the_end_of_a_range_does_not_saturate():
    """Of [-2, 2] in 8 bits the zero point is rounded: black pixels lie half a step outside."""
    assert count_saturated(torch.tensor([-2.0, 2.0]), params(0.0156862717, 127)) == 0


def test_channels_saturate_by_their_own_range():
    x = torch.tensor([[100.0, 100.0], [-100.0, 300.0]])
    assert count_saturated(x, params([0.5, 2.0], [0, 0], INT8_NARROW, 1)) == 3


def test_blocks_saturate_by_their_own_range():
    x = torch.tensor([[100.0, -300.0, 300.0], [0.0, 0.0, 40.0]])
    scale = torch.tensor([[0.5, 2.0], [0.1, 0.1]])
    blocks = QuantParams(INT8_NARROW, scale, torch.zeros(2, 2, dtype=torch.int64), 1, 2)
    assert count_saturated(x, blocks) == 4


def test_bars_count_every_element():
    histogram = Histogram(None, bins=64)
    assert histogram_facts(histogram, None, 0.0) is None
    x = torch.linspace(0, 10, 1000)
    histogram.update(x)
    found = histogram_facts(histogram, params(0.02, 0), 0.25)
    assert sum(found.counts) == 1000
    assert (found.least, found.most, found.clipped) == (0.0, 10.0, 0.25)
    assert (found.low, found.high) == (0.0, pytest.approx(5.1))
    assert found.start <= 0.0
    assert found.stop >= 10.0


def test_bars_of_weights_say_what_is_clipped():
    weight = torch.tensor([[-2.0, 1.0, 0.5, 0.25]])
    assert weight_histogram(weight, params(0.01, 0, INT8_NARROW)).clipped == 0.25
    assert weight_histogram(weight, params(0.02, 0, INT8_NARROW)).clipped == 0.0


def test_signal_and_noise():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 2.0])
    assert signal_and_noise(a, b).tolist() == [25.0, 4.0]
    huge = torch.tensor([1e30, 0.0])
    assert np.isfinite(signal_and_noise(huge, torch.zeros(2))).all()
