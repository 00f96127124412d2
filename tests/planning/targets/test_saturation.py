"""Pair sums in 16 bits: emulated as the instruction does them, in the order of packed weights."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from qtool import observers
from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.verification.planned_file import Expected, check_structure
from qtool.core.errors import VerificationError
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8_NARROW, UINT8
from qtool.core.weight_pairs import is_depthwise
from qtool.planning.plan import Execution
from qtool.planning.targets.saturation import (
    largest_pair_sums,
    pair_partners,
    saturation_limit,
    shrink_pairs,
    widen_scales,
)
from tests.planning.targets.converted import converted, network, samples, written

VNNI, PORTABLE = "onnxruntime-x86-vnni", "onnxruntime"


def saturating_dot(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """vpmaddubsw, vpmaddwd, vpaddd over [n, k] codes and one channel [k] of weights."""
    k = weights.size + weights.size % 2
    a = np.zeros((len(activations), k), np.int64)
    w = np.zeros(k, np.int64)
    a[:, : weights.size], w[: weights.size] = activations, weights
    pairs = (a * w).reshape(len(a), -1, 2).sum(2)
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(1)


def packed(channel: np.ndarray) -> np.ndarray:
    """One output channel [inputs, *kernel] tap by tap, the input channels innermost."""
    return channel.reshape(channel.shape[0], -1).T.reshape(-1)


def saturates(channel: np.ndarray, seed: int = 0) -> bool:
    """Whether any activation codes give a wrong sum, packed as a whole or tap by tap."""
    generator = np.random.default_rng(seed)
    taps = channel.reshape(channel.shape[0], -1).T
    return any(_wrong(weights, generator) for weights in (packed(channel), *taps))


def _wrong(weights: np.ndarray, generator: np.random.Generator) -> bool:
    codes = np.stack([np.where(weights > 0, 255, 0), np.where(weights < 0, 255, 0)])
    codes = np.concatenate([codes, generator.integers(0, 256, (8, weights.size))])
    return bool((saturating_dot(codes, weights) != (codes * weights).sum(1)).any())


def channels(file: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Weight codes of the layers whose products are added in pairs: [out, in, *kernel]."""
    arrays = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    readers = {i: n for n in file.graph.node for i in n.input}
    codes = {}
    for name, array in arrays.items():
        if name.endswith(".weight.codes"):
            layer = readers[readers[name].output[0]]
            groups = next((a.i for a in layer.attribute if a.name == "group"), 1)
            if not is_depthwise(array.shape, groups):
                codes[name] = array.astype(np.int64)
    return codes


def solved(weight: torch.Tensor, axis: int | None = 0) -> QuantParams:
    reach = weight.abs().amax() if axis is None else weight.flatten(1).abs().amax(1)
    return observers.solve(-reach.double(), reach.double(), INT8_NARROW, True, axis)


@pytest.mark.parametrize(
    "weights", [[1, 127], [64, 64], [127, 1], [-64, -64], [127, -127, 1], [127, 1, 127]]
)
def test_what_keeps_to_the_limit_does_not_saturate(weights: list[int]) -> None:
    codes = np.array(weights)
    assert int(largest_pair_sums(torch.tensor([weights]), 0)) <= saturation_limit(UINT8)
    assert not saturates(codes)


@pytest.mark.parametrize(
    "weights", [[2, 127], [65, 64], [-65, -64], [3, 127, -5, 2], [1, 1, 127, 2]]
)
def test_what_exceeds_the_limit_saturates(weights: list[int]) -> None:
    assert int(largest_pair_sums(torch.tensor([weights]), 0)) > saturation_limit(UINT8)
    assert saturates(np.array(weights))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((16, 8, 3, 3), 0), ((9, 3, 3, 3), 0), ((8, 1, 3, 3), 0), ((60, 2), 0), ((5, 40), None)],
)
def test_widened_scales_keep_every_pair_within_the_limit(
    shape: tuple[int, ...], axis: int | None
) -> None:
    weight, limit = torch.randn(shape), saturation_limit(UINT8)
    before = solved(weight, axis)
    after = widen_scales(weight, before, limit)
    rows = after.quantize(weight).numpy().astype(np.int64)
    assert any(saturates(row) for row in before.quantize(weight).numpy().astype(np.int64))
    assert not any(saturates(row) for row in rows)
    ratio = (after.scale / before.scale).double()
    assert (ratio >= 1).all()
    assert (ratio <= 2.0).all()  # 7 bits would cost 127 / 64 everywhere


def test_a_channel_that_cannot_saturate_keeps_its_scale() -> None:
    weight = torch.tensor([[1.0, -1.0, 0.9], [1.0, 0.9, 0.8], [1.0, 0.5, -0.2]])
    before = solved(weight)
    after = widen_scales(weight, before, 128)
    assert (after.scale == before.scale).tolist() == [True, False, False]
    # an outlier beside a smaller weight costs less than 7 bits: (1 + 0.5) * 127 / 128
    assert float(after.scale[2] / before.scale[2]) == pytest.approx(1.5 * 127 / 128, rel=0.01)


def brute_partners(shape: tuple[int, ...]) -> set[frozenset[int]]:
    """Pairs of a channel by its definition: positions 2i, 2i + 1 of the packed order, and channels
    2i, 2i + 1 of a tap."""
    order = packed(np.arange(np.prod(shape)).reshape(shape)).tolist()
    whole = {frozenset(order[i : i + 2]) for i in range(0, len(order) - 1, 2)}
    inputs = shape[0]
    for start in range(0, len(order), inputs):
        tap = order[start : start + inputs]
        whole |= {frozenset(tap[i : i + 2]) for i in range(0, inputs - 1, 2)}
    return whole


@pytest.mark.parametrize("shape", [(4, 3, 3), (3, 3, 3), (1, 3, 3), (5, 2), (7,), (8,), (1,)])
def test_partners_are_the_neighbours_of_the_packed_weight(shape: tuple[int, ...]) -> None:
    table = pair_partners((5, *shape)).tolist()
    pairs = {frozenset((i, j)) for i, row in enumerate(table) for j in row if j >= 0}
    assert pairs == brute_partners(shape)


@pytest.mark.parametrize("shape", [(3, 4, 3, 3), (3, 3, 3, 3), (3, 1, 3), (3, 9), (3, 1)])
def test_largest_pairs_are_those_of_partners(shape: tuple[int, ...]) -> None:
    codes = torch.randint(-127, 128, shape)
    for channel, largest in zip(codes, largest_pair_sums(codes, 0).tolist(), strict=True):
        flat = channel.flatten().tolist()
        sums = [abs(flat[i] + flat[j]) for i, j in map(tuple, brute_partners(shape[1:]))]
        met = {i for pair in brute_partners(shape[1:]) for i in pair if len(pair) == 2}
        assert largest == max([0, *sums, *(abs(flat[i]) for i in met)])


def test_widening_more_keeps_the_proof() -> None:
    """The scale of a channel may grow further where a bias would overflow."""
    weight = torch.randn(8, 20)
    params = widen_scales(weight, solved(weight), 128)
    for factor in (1.01, 1.3, 2.0, 10.0):
        wider = replace(params, scale=params.scale * factor)
        assert int(largest_pair_sums(wider.quantize(weight), 0).max()) <= 128


@pytest.mark.parametrize("name", ["residual_concat", "depthwise"])
def test_the_file_for_cpus_without_vnni_cannot_saturate(name: str) -> None:
    plain = channels(written(name, VNNI))
    safe = channels(written(name, PORTABLE))
    assert plain.keys() == safe.keys()
    assert any(saturates(row) for rows in plain.values() for row in rows)  # the emulation can fail
    assert not any(saturates(row) for rows in safe.values() for row in rows)


def test_a_file_that_could_saturate_is_refused() -> None:
    expected = Expected(saturation_limit=128)
    model = converted("depthwise", VNNI)
    integer = {d.node for d in model.plan.nodes if d.execution is Execution.INTEGER}
    with pytest.raises(VerificationError, match="beyond 128 their products saturate 16 bits"):
        check_structure(written("depthwise", VNNI), integer, expected)
    check_structure(written("depthwise", PORTABLE), integer, expected)


def test_weights_of_dynamic_layers_keep_to_the_limit_and_are_checked() -> None:
    layer = nn.Linear(40, 6).eval()
    with torch.no_grad():
        layer.weight[:, :2] = 1.0  # two largest codes side by side
    found = {
        t: quantize(layer, [torch.randn(4, 40)], mode="dynamic", target=t, accuracy="fast")
        for t in (VNNI, PORTABLE)
    }
    check_structure(found[PORTABLE].to_onnx(), set(), Expected(saturation_limit=128))
    with pytest.raises(VerificationError, match="beyond 128 their products saturate 16 bits"):
        check_structure(found[VNNI].to_onnx(), set(), Expected(saturation_limit=128))


def test_weights_that_no_code_is_multiplied_by_keep_their_scale() -> None:
    layer = nn.Linear(40, 6).eval()
    with torch.no_grad():
        layer.weight[:, :2] = 1.0
    scales = [
        quantize(
            layer, [torch.randn(4, 40)], mode="weight-only", target=t, accuracy="fast"
        ).parameters
        for t in (VNNI, PORTABLE)
    ]
    plain, safe = (next(iter(s.values())).scale for s in scales)
    assert torch.equal(plain, safe)


def test_the_price_is_small() -> None:
    x = samples("residual_concat")
    with torch.no_grad():
        real = network("residual_concat")(x)
        noise = [
            float((converted("residual_concat", t)(x) - real).square().mean())
            for t in (VNNI, PORTABLE)
        ]
    signal = float(real.square().mean())
    assert 10 * np.log10(signal / noise[1]) > 28  # dB
    assert noise[1] < 6 * noise[0]


@pytest.mark.parametrize("axis", [0, 1, None])
def test_pairs_shrink_to_the_limit_and_no_further(axis: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (6, 10), generator=generator).to(torch.int8)
    kept = shrink_pairs(codes, axis, 128)
    assert kept.dtype == codes.dtype
    assert (
        int(largest_pair_sums(kept, axis).max()) <= 128 < int(largest_pair_sums(codes, axis).max())
    )
    assert torch.equal(shrink_pairs(kept, axis, 128), kept)
    assert bool((kept.int().abs() <= codes.int().abs()).all())
    assert bool((kept.int() * codes.int() >= 0).all())
