"""Costs of convolutions in integers and in float, from timings of chains: the table of
qtool/planning/speed.

    python benchmarks/chain_costs.py [--chains 600] [--seconds 0.3] [--seed 1]

Needs scipy. Chains of equal layers are timed in ONNX Runtime, both forms in turns, by thread CPU
time; the time of a layer is the difference of a long and a short chain, so that the ends of the
chain cancel out. Layers whose result has another size than their input are timed alone. The units
of work of `Convolution` are fitted to these times by non-negative least squares of relative errors,
reweighted towards their absolute values. Prints the table, and how well it predicts: quantiles of
predicted over measured time, and of predicted over measured speed-up on chains that are not fitted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
from measured import session
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import nnls

from qtool.planning.speed.costs import Convolution

SHORT, LONG = 2, 6
CHANNELS = (1, 3, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 72, 96, 128, 160, 192, 256, 320, 384, 512)
MAPS = (1, 3, 7, 10, 14, 20, 28, 40, 56, 80, 112)
KINDS = ("1x1", "kernel", "kernel", "depthwise", "both", "first", "stride", "wide")
ELEMENTWISE = {
    "add": ("Add", True),
    "mul": ("Mul", True),
    "sigmoid": ("Sigmoid", False),
}
SCALE, LEAST_MICROSECONDS = 0.03, 0.3
MOST_MACS, MOST_RESULTS = 150_000_000, 1_500_000
BOUNDARY, BOUNDARY_ELEMENT = "boundary", "boundary element"
Work = dict[str, float]


@dataclass(frozen=True)
class Layer:
    """A convolution of square maps with "same" padding, and its stride."""

    inputs: int
    outputs: int
    kernel: int
    size: int
    groups: int = 1
    stride: int = 1

    @property
    def sizes(self) -> Convolution:
        made = -(-self.size // self.stride)
        return Convolution(
            self.inputs // self.groups,
            self.outputs // self.groups,
            self.groups,
            self.kernel**2,
            made**2,
            self.size**2,
        )


@dataclass(frozen=True)
class Timing:
    """Layers that were timed together, in microseconds of one pass through them."""

    layers: tuple[Layer, ...]
    closed: bool  # the ends cancel out
    in_float: float
    in_integers: float


class _Graph:
    """The ONNX model of a chain, in float or as QDQ."""

    def __init__(self, integers: bool, rng: np.random.Generator) -> None:
        self.integers, self.rng, self.count = integers, rng, 0
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"t{self.count}"], **attributes))
        return f"t{self.count}"

    def constant(self, array: Any) -> str:
        self.count += 1
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{self.count}"))
        return f"c{self.count}"

    def rounded(self, x: str, zero: int) -> str:
        if not self.integers:
            return x
        scale, zero_point = self.constant(np.float32(SCALE)), self.constant(np.uint8(zero))
        codes = self.add("QuantizeLinear", x, scale, zero_point)
        return self.add("DequantizeLinear", codes, scale, zero_point)

    def convolution(self, x: str, layer: Layer) -> str:
        shape = (layer.outputs, layer.inputs // layer.groups, layer.kernel, layer.kernel)
        weight = self.rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)
        bias = np.zeros(layer.outputs, np.float32)
        if self.integers:
            scale = np.abs(weight).max((1, 2, 3)) / 63
            codes = np.round(weight / scale[:, None, None, None]).astype(np.int8)
            parts = [self._codes(codes, scale), self._codes(bias.astype(np.int32), SCALE * scale)]
        else:
            parts = [self.constant(weight), self.constant(bias)]
        options = {"group": layer.groups, "strides": [layer.stride] * 2}
        return self.add("Conv", x, *parts, pads=[layer.kernel // 2] * 4, **options)

    def _codes(self, codes: np.ndarray, scale: np.ndarray) -> str:
        zero = np.zeros(len(scale), codes.dtype)
        names = map(self.constant, (codes, scale.astype(np.float32), zero))
        return self.add("DequantizeLinear", *names, axis=0)

    def session(self, result: str, shape: Sequence[int]) -> onnxruntime.InferenceSession:
        self.nodes.append(helper.make_node("Identity", [result], ["y"]))
        ends = (("x", shape), ("y", None))
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends]
        graph = helper.make_graph(self.nodes, "chain", values[:1], values[1:], self.tensors)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return session(model.SerializeToString())


Step = Callable[[_Graph, str, str], str]
"""(graph, tensor, the chain's input) -> the next tensor, before it is rounded."""


def _relu(layer: Layer) -> Step:
    return lambda graph, x, _: graph.add("Relu", graph.convolution(x, layer))


def _elementwise(op: str, binary: bool) -> Step:
    return lambda graph, x, first: graph.add(op, *((x, first) if binary else (x,)))


def _session(integers: bool, steps: Sequence[Step], zero: int, shape: tuple[int, ...]) -> Any:
    graph = _Graph(integers, np.random.default_rng(0))
    x = first = graph.rounded("x", 128)
    for step in steps:
        x = graph.rounded(step(graph, x, first), zero)
    return graph.session(x, shape)


def _times(sessions: dict[Any, Any], shape: tuple[int, ...], seconds: float) -> dict[Any, float]:
    """Median microseconds of a run, in turns."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    taken: dict[Any, list[float]] = {key: [] for key in sessions}
    end = time.perf_counter() + seconds
    for number in range(300):
        if number > 10 and time.perf_counter() > end:
            break
        for key, runtime in sessions.items():
            start = time.thread_time()
            runtime.run(None, {"x": x})
            taken[key].append(time.thread_time() - start)
    return {key: 1e6 * float(np.median(values[2:])) for key, values in taken.items()}


def _per_pass(
    steps: Sequence[Step], zero: int, shape: tuple[int, ...], closed: bool, seconds: float
) -> tuple[float, float]:
    """Microseconds of one pass through the steps in float, and in integers."""
    lengths = (SHORT, LONG) if closed else (1,)
    forms = [(form, n) for form in (False, True) for n in lengths]
    sessions = {key: _session(key[0], list(steps) * key[1], zero, shape) for key in forms}
    took = _times(sessions, shape, seconds)
    if not closed:
        return took[False, 1], took[True, 1]
    in_float, integers = ((took[f, LONG] - took[f, SHORT]) / (LONG - SHORT) for f in (False, True))
    return in_float, integers


def draw(rng: np.random.Generator) -> tuple[Layer, ...]:
    """Layers of a chain: products, kernels, depthwise ones, first layers, strides, bottlenecks."""
    while True:
        kind = rng.choice(KINDS)
        a, b = map(int, rng.choice(CHANNELS, 2))
        size, kernel = int(rng.choice(MAPS)), int(rng.choice((3, 3, 5, 7)))
        layers = {
            "1x1": (Layer(a, b, 1, size), Layer(b, a, 1, size)),
            "kernel": (Layer(a, b, kernel, size), Layer(b, a, 1, size)),
            "depthwise": (Layer(a, a, kernel, size, a),),
            "both": (Layer(a, a, kernel, size, a), Layer(a, a, 1, size)),
            "first": (Layer(int(rng.choice((1, 3))), b, kernel, 2 * size, stride=2),),
            "stride": (Layer(a, b, kernel, size, stride=2),),
            "wide": (Layer(a, 6 * a, 1, size), Layer(6 * a, a, 1, size)),
        }[kind]
        sizes = [layer.sizes for layer in layers]
        macs = sum(s.groups * s.inputs * s.outputs * s.taps * s.pixels for s in sizes)
        results = max(s.pixels * s.groups * s.outputs for s in sizes)
        if (
            macs < MOST_MACS
            and results < MOST_RESULTS
            and all(s.groups != 1 or a > 1 for s in sizes)
        ):
            return layers


def time_layers(layers: tuple[Layer, ...], seconds: float) -> Timing:
    ends = layers[-1].outputs == layers[0].inputs and all(layer.stride == 1 for layer in layers)
    assert all(a.outputs == b.inputs for a, b in pairwise(layers))
    shape = (1, layers[0].inputs, layers[0].size, layers[0].size)
    times = _per_pass([_relu(layer) for layer in layers], 0, shape, ends, seconds)
    return Timing(layers, ends, *times)


def work_of(timing: Timing, integers: bool) -> Work:
    total: Work = {}
    for layer in timing.layers:
        work = layer.sizes.integer_work() if integers else layer.sizes.float_work()
        for name, count in work.items():
            total[name] = total.get(name, 0.0) + count
    if not timing.closed:  # the call of a session, and what reads and writes its tensors
        first, last = timing.layers[0].sizes, timing.layers[-1].sizes
        ends = first.read * first.inputs * first.groups + last.pixels * last.outputs * last.groups
        total |= {BOUNDARY: 2.0, BOUNDARY_ELEMENT: float(ends)}
    return total


def fit(timings: Sequence[Timing], integers: bool) -> Work:
    """Nanoseconds of each unit of work."""
    works = [work_of(timing, integers) for timing in timings]
    names = sorted({name for work in works for name in work})
    counts = np.array([[work.get(name, 0.0) for name in names] for work in works])
    taken = 1000 * np.array([t.in_integers if integers else t.in_float for t in timings])
    weights = 1 / taken
    for _ in range(10):
        units, _ = nnls(counts * weights[:, None], taken * weights)
        errors = np.abs(counts @ units / taken - 1)
        weights = 1 / taken / np.sqrt(np.maximum(errors, 0.1))
    return {name: float(f"{unit:.3g}") for name, unit in zip(names, units, strict=True)}


def predict(timing: Timing, units: Work, integers: bool) -> float:
    return sum(units.get(n, 0.0) * c for n, c in work_of(timing, integers).items()) / 1000


def _elementwise_costs(seconds: float) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Nanoseconds of an element of each operator in both forms, and of a pair of Q and DQ."""
    costs: dict[str, tuple[float, float]] = {}
    shapes = [(1, 16, 48, 48), (1, 64, 28, 28), (1, 256, 7, 7)]
    counts = np.array([np.prod(shape) for shape in shapes])
    for key, (op, binary) in ELEMENTWISE.items():
        steps = [_elementwise(op, binary)]
        taken = np.array([_per_pass(steps, 128, shape, True, seconds) for shape in shapes])
        slopes = [np.polyfit(counts, 1000 * taken[:, form], 1)[0] for form in (0, 1)]
        costs[key] = (float(f"{slopes[0]:.2g}"), float(f"{slopes[1]:.2g}"))
    steps = [_elementwise("Neg", False)]
    pairs = np.array([np.subtract(*_per_pass(steps, 128, s, True, seconds)[::-1]) for s in shapes])
    slope, start = np.polyfit(counts, 1000 * pairs, 1)
    return costs, float(start), float(slope)


def _quantiles(values: Sequence[float]) -> str:
    return " ".join(f"{v:.2f}" for v in np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=0.3, help="of the timing of each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    timings = [time_layers(draw(rng), options.seconds) for _ in range(options.chains)]
    timings = [t for t in timings if min(t.in_float, t.in_integers) > LEAST_MICROSECONDS]
    half = len(timings) // 2
    for name, part in (("half of the chains", timings[:half]), ("all chains", timings)):
        units = {form: fit(part, form) for form in (False, True)}
        judged = timings[half:]
        print(f"fitted to {name} ({len(part)}), judged on {len(judged)}")
        for form in (False, True):
            taken = [t.in_integers if form else t.in_float for t in judged]
            ratios = [predict(t, units[form], form) / s for t, s in zip(judged, taken, strict=True)]
            print("  integers" if form else "  float", _quantiles(ratios))
        closed = [t for t in judged if t.closed]
        gains = [predict(t, units[False], False) / predict(t, units[True], True) for t in closed]
        real = [t.in_float / t.in_integers for t in closed]
        pairs = list(zip(gains, real, strict=True))
        wrong = sum((g > 1.1 and r < 0.9) or (g < 0.9 and r > 1.1) for g, r in pairs)
        print("  speed-up", _quantiles([g / r for g, r in pairs]), f"; wrong side {wrong}")
    print(json.dumps({"in_float": units[False], "in_integers": units[True]}, indent=1))
    print(json.dumps(_elementwise_costs(options.seconds)))


if __name__ == "__main__":
    main()
