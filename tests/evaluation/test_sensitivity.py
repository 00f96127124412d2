"""The sweep: its numbers are those of whole runs, and a broken layer leads."""

import math
from dataclasses import replace

import pytest
import torch

import qtool
from qtool.core.data import Batch
from qtool.core.sqnr import decibels
from qtool.evaluation.layer_facts import layers_of
from qtool.evaluation.sensitivity import measure_sensitivity, split_batch
from qtool.planning.fake_quantize import quant_points
from tests.evaluation.spoiled import chain, images

EVERYTHING = 1e6  # a budget that deals every chunk to every layer


def data(count=64, size=16):
    return [Batch((part,)) for part in images(count).split(size)]


def output_db(quantized, on, inputs):
    """Output SQNR with only the points in `on` active: two whole runs, the slow and sure way."""
    points = quant_points(quantized.module)
    kept = {name: point.params for name, point in points.items() if name not in on}
    with torch.no_grad():
        expected = quantized.graph.module(inputs)
        for name in kept:
            points[name].qtype = None
        actual = quantized(inputs)
    for name, params in kept.items():
        points[name].set_params(params)
    noise = (expected - actual).double().square().sum()
    return decibels(float(expected.double().square().sum()), float(noise))


def test_equals_whole_runs():
    quantized = chain()
    found = measure_sensitivity(quantized, data(), budget=EVERYTHING)
    every = {name for layer in layers_of(quantized) for name in layer.points}
    assert found.output_db == pytest.approx(output_db(quantized, every, images()), abs=1e-3)
    assert [e.name for e in found.layers] == [layer.name for layer in layers_of(quantized)]
    for layer, error in zip(layers_of(quantized), found.layers, strict=True):
        only = output_db(quantized, layer.points, images())
        left = output_db(quantized, every - layer.points, images())
        assert error.only_db == pytest.approx(only, abs=1e-3), layer.name
        assert error.left_db == pytest.approx(left, abs=1e-3), layer.name
        assert error.gain_db == pytest.approx(left - found.output_db, abs=2e-3)
        assert error.samples == 64


def test_layers_with_rounded_weights_are_not_free():
    """GPTQ writes the rounded weights into the graph, where their points change nothing."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).eval()
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    x = torch.randn(512, 16, generator=generator) @ torch.randn(16, 64, generator=generator)
    model = qtool.quantize(net, x.split(64), mode="weight-only-int4", recover=["gptq"])
    assert model.changes
    result = measure_sensitivity(model, [Batch((x,))], budget=EVERYTHING)
    assert [e.name for e in result.layers] == ["0", "1"]
    assert all(e.only_db is not None and e.only_share > 0.1 for e in result.layers)
    assert result.output_db == pytest.approx(model.fidelity.worst, abs=1)


def test_share_is_of_a_typical_sample():
    """One sample far out of the range that was calibrated does not make a layer lead."""
    quantized = chain()
    sound = measure_sensitivity(quantized, data(), budget=EVERYTHING)
    far = [Batch((b.args[0].clone(),)) for b in data()]
    far[0].args[0][0] *= 30
    hurt = measure_sensitivity(quantized, far, budget=EVERYTHING)
    assert hurt.output_db < sound.output_db - 10, "the whole error is that of the one sample"
    for before, after in zip(sound.layers, hurt.layers, strict=True):
        assert after.only_share == pytest.approx(before.only_share, rel=0.3), before.name


@pytest.mark.parametrize(
    "spoiled",
    [{"conv.1": 0.1}, {"add": 0.1}, {"conv.2": 20.0, "conv.0": 16.0}],
    ids=["narrow", "add", "two wide ones"],
)
def test_broken_layers_lead(spoiled):
    found = measure_sensitivity(chain(spoiled), data())
    by_error = sorted(found.layers, key=lambda e: -e.only_share)
    assert {e.name for e in by_error[: len(spoiled)]} == set(spoiled)
    alone = sorted(found.layers, key=lambda e: math.inf if e.alone_db is None else e.alone_db)
    assert {e.name for e in alone[: len(spoiled)]} == set(spoiled)


def test_clipping_is_counted():
    narrow, sound = (
        next(e for e in measure_sensitivity(model, data()).layers if e.name == "conv.1")
        for model in (chain({"conv.1": 0.1}), chain())
    )
    assert narrow.activation.clipped > 0.1 > sound.activation.clipped
    assert narrow.activation.most > narrow.activation.high


def test_a_smaller_budget_is_kept_by_fewer_samples():
    few, many = (measure_sensitivity(chain(), data(256), budget=b) for b in (5.0, 12.0))
    assert few.evaluations <= 5
    assert all(e.samples > 0 for e in few.layers)
    assert sum(e.samples for e in few.layers) < sum(e.samples for e in many.layers)


def test_fixed_batch_is_not_cut():
    quantized = chain()
    fixed = replace(quantized.graph.inputs[0], shape=(16, 3, 8, 8))
    quantized.graph = replace(quantized.graph, inputs=(fixed,))
    seen = []
    measure_sensitivity(quantized, data(), progress=lambda chunks: seen.extend(chunks) or chunks)
    assert [c.size for c in seen] == [16] * 4


def test_batches_are_split_with_the_cache_in_them():
    cache = [{"key": torch.arange(5.0)[:, None]}]
    parts = split_batch(Batch((torch.arange(5),), {"past": cache, "flag": torch.tensor(1)}), 2)
    assert [p.size for p in parts] == [1, 2, 2]
    assert [p.kwargs["past"][0]["key"].flatten().tolist() for p in parts] == [[0], [1, 2], [3, 4]]
    assert all(p.kwargs["flag"] == 1 for p in parts)
