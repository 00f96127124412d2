"""The regressions that benchmarks/gate.py plants: edits of files, of their data and of labels.

Each takes a case, a generator and what measures a drop on all samples, and returns a `Planted`.
Where a regression has a strength, it is the one with about twice the largest accepted drop.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from gate_cases import Array, Case, Measure, Planted, Regression
from onnx import helper, numpy_helper
from onnxruntime import quantization
from torch import nn

__all__ = ["OTHERS", "REGRESSIONS", "by_another_tool"]

IMAGES = ("kws", "resnet20", "mobilenetv2_w05")
ALL = (*IMAGES, "minilm")


# --- files ---------------------------------------------------------------------------------------


def _edited(case: Case, edit: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(case.file)
    edit(model)
    out = case.file.with_name("planted.onnx")
    onnx.save(model, out)
    return out


def _codes(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Codes of weights, without those of biases."""
    stored = {i.name: i for i in model.graph.initializer}
    weights = (stored.get(n.input[0]) for n in model.graph.node if n.op_type == "DequantizeLinear")
    int8 = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    return [w for w in weights if w is not None and len(w.dims) > 1 and w.data_type in int8]


def _graded(
    case: Case, measure: Measure, edit: Callable[[float], Path], real: Path | None = None
) -> Planted:
    """The least strength of 0 to 1 whose drop is at least twice the limit."""
    low, high = 0.0, 1.0
    drop = measure(edit(high))
    if drop < 2 * case.limit:
        raise RuntimeError(f"{case.name}: the strongest regression drops by {drop:.4f} only")
    for _ in range(7):
        middle = (low + high) / 2
        now = measure(edit(middle))
        if now < 2 * case.limit:
            low = middle
        else:
            high, drop = middle, now
        if 2 * case.limit <= drop <= 2.4 * case.limit:
            break
    return Planted(edit(high), real or case.real, drop)


def _saturating(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """Weights whose codes end at a smaller number, in a random half of the layers."""
    number = len(_codes(onnx.load(case.file)))
    chosen = set(generator.permutation(number)[: max(1, number // 2)])

    def edit(strength: float) -> Path:
        def clip(model: onnx.ModelProto) -> None:
            for i, tensor in enumerate(_codes(model)):
                if i in chosen:
                    codes = numpy_helper.to_array(tensor)
                    most = max(1, round(127 * (1 - strength)))
                    middle = 0 if codes.dtype == np.int8 else 128
                    tensor.raw_data = codes.clip(middle - most, middle + most).tobytes()

        return _edited(case, clip)

    return _graded(case, measure, edit)


def _flipped(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """Bits flipped in random bytes of weights."""
    sizes = [len(t.raw_data) for t in _codes(onnx.load(case.file))]
    order, bits = generator.permutation(sum(sizes)), generator.integers(0, 8, sum(sizes))

    def edit(strength: float) -> Path:
        count = round(sum(sizes) ** strength)

        def flip(model: onnx.ModelProto) -> None:
            mask = np.zeros(sum(sizes), np.uint8)
            mask[order[:count]] = 1 << bits[:count]
            parts = np.split(mask, np.cumsum(sizes)[:-1])
            for tensor, part in zip(_codes(model), parts, strict=True):
                tensor.raw_data = (np.frombuffer(tensor.raw_data, np.uint8) ^ part).tobytes()

        return _edited(case, flip)

    return _graded(case, measure, edit)


def _dropped_layer(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """A random layer of as many outputs as inputs is left out; the first that costs enough."""
    nodes = [i for i, n in enumerate(onnx.load(case.file).graph.node) if n.op_type in LAYERS]
    for index in generator.permutation(nodes):

        def drop(model: onnx.ModelProto, index: int = int(index)) -> None:
            node = model.graph.node[index]
            identity = helper.make_node("Identity", [node.input[0]], list(node.output))
            model.graph.node[index].CopyFrom(identity)

        file = _edited(case, drop)
        try:
            cost = measure(file)
        except Exception:  # noqa: BLE001, S112 - other shapes: not a layer of this kind
            continue
        if cost >= 2 * case.limit:
            return Planted(file, case.real, cost)
    raise RuntimeError(f"{case.name}: no layer costs enough")


LAYERS = ("Conv", "MatMul", "Gemm")


def _not_a_number(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """NaN where the sum of a sample is in a random percent of all sums."""
    name, array = next(iter(case.inputs.items()))
    sums = array.reshape(len(array), -1).astype(np.float32).sum(1)
    start = generator.uniform(0, 0.99)
    low, high = np.quantile(sums, (start, start + 0.01))

    def edit(model: onnx.ModelProto) -> None:
        output, graph = model.graph.output[0].name, model.graph
        for node in graph.node:
            node.output[:] = ["before" if o == output else o for o in node.output]
        constants = {"low": low, "high": high, "nan": np.nan, "zero": 0.0}
        for key, value in constants.items():
            array = np.float32(value).reshape(1, 1)
            graph.initializer.append(numpy_helper.from_array(array, f"planted.{key}"))
        shape = numpy_helper.from_array(np.array([0, -1]), "planted.shape")
        axes = numpy_helper.from_array(np.array([1]), "planted.axes")
        graph.initializer.extend([shape, axes])
        for kind, sources, made, attributes in (
            ("Cast", [name], "planted.float", {"to": onnx.TensorProto.FLOAT}),
            ("Reshape", ["planted.float", "planted.shape"], "planted.flat", {}),
            ("ReduceSum", ["planted.flat", "planted.axes"], "planted.sum", {}),
            ("Greater", ["planted.sum", "planted.low"], "planted.above", {}),
            ("Less", ["planted.sum", "planted.high"], "planted.below", {}),
            ("And", ["planted.above", "planted.below"], "planted.both", {}),
            ("Where", ["planted.both", "planted.nan", "planted.zero"], "planted.add", {}),
            ("Add", ["before", "planted.add"], output, {}),
        ):
            graph.node.append(helper.make_node(kind, sources, [made], **attributes))

    return Planted(_edited(case, edit), case.real)


def by_another_tool(case: Case, real: Path, out: Path, **options: Any) -> None:
    """Write the file of onnxruntime.quantization, by default with channels and full range."""
    assert case.training is not None
    name = next(iter(case.inputs))
    rows: Iterator[Array] = iter(case.training[0][:64, None].numpy())

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> Any:
            row = next(rows, None)
            return None if row is None else {name: row}

    settings = {
        "per_channel": True,
        "activation_type": quantization.QuantType.QUInt8,
        "weight_type": quantization.QuantType.QInt8,
    }
    quantization.quantize_static(real, out, Reader(), **{**settings, **options})


def _slower(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """16-bit activations, which the runtime computes in float between the codes."""
    out = case.file.with_name("planted.onnx")
    by_another_tool(case, case.real, out, activation_type=quantization.QuantType.QUInt16)
    return Planted(out, case.real, options=(("min_speedup", 1.0), ("max_drop", 0.5)))


def _depthwise(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """A tensor per scale, where the channels in front of depthwise convolutions differ in size."""
    layers = [m for m in case.module.modules() if isinstance(m, nn.BatchNorm2d | nn.Conv2d)]
    draws = [generator.normal(size=m.weight.shape[0]) for m in layers]
    real, out = (case.file.with_name(f"planted{n}.onnx") for n in (".float", ""))

    def edit(strength: float) -> Path:
        module = copy.deepcopy(case.module)
        own = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d | nn.Conv2d)]
        for norm, conv, draw in zip(own, own[1:], draws, strict=False):
            if isinstance(norm, nn.BatchNorm2d) and isinstance(conv, nn.Conv2d) and conv.groups > 1:
                factor = torch.tensor(np.exp2(8 * strength * draw), dtype=torch.float32)
                norm.weight.data *= factor
                norm.bias.data *= factor
                conv.weight.data /= factor.view(-1, 1, 1, 1)
        case.export(module, real)
        by_another_tool(case, real, out, per_channel=False)
        return out

    return _graded(case, measure, edit, real)


def _swapped(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """Images of the file in another order of colours, or features of another order, from the first
    layer on."""

    def edit(model: onnx.ModelProto) -> None:
        tensor = next(t for t in _codes(model) if len(t.dims) == 4)
        codes = numpy_helper.to_array(tensor)
        if codes.shape[1] == 3:
            order = ([2, 1, 0], [1, 0, 2], [0, 2, 1], [1, 2, 0])
            codes = codes[:, order[generator.integers(len(order))]]
        else:
            codes = codes[:, :, ::-1] if generator.integers(2) else codes[:, :, :, ::-1]
        tensor.raw_data = np.ascontiguousarray(codes).tobytes()

    file = _edited(case, edit)
    return Planted(file, case.real, measure(file))


def _other_tokenizer(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """A vocabulary with one more word at a random place, in the file alone."""

    def edit(strength: float) -> Path:
        def shift(model: onnx.ModelProto) -> None:
            table = max(model.graph.initializer, key=lambda i: np.prod(i.dims))
            rows = numpy_helper.to_array(table).copy()
            start = round(len(rows) * (1 - strength))
            rows[start:] = np.roll(rows[start:], 1, axis=0)
            table.CopyFrom(numpy_helper.from_array(rows, table.name))

        return _edited(case, shift)

    strength = generator.uniform(0.9, 0.97)  # the first words are numbers and signs
    file = edit(strength)
    return Planted(file, case.real, measure(file))


def _stale(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """A float file that was trained for another 2 to 40 steps than the one that was quantized."""
    assert case.training is not None
    inputs, labels = case.training
    module = copy.deepcopy(case.module).train()
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    for _ in range(int(generator.integers(2, 41))):
        index = torch.from_numpy(generator.choice(len(inputs), 64, replace=False))
        loss = nn.functional.cross_entropy(module(inputs[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    against = case.file.with_name("planted.float.onnx")
    case.export(module.eval(), against)
    return Planted(case.file, against)


def _wrong_cpu(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """8-bit weights and activations where products of int8 saturate (a Haswell, emulated)."""
    return Planted(case.other, case.real, cpu="Haswell", draw=300)


# --- data and labels -----------------------------------------------------------------------------


def _labels_shifted(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """Labels of the next samples, or class numbers that count from 1 (similarities stay in order
    where all grow by 1)."""
    by, classes = int(generator.integers(1, 9)), len(np.unique(case.labels))
    if generator.integers(2) or case.metric == "spearman":
        return Planted(case.file, case.real, labels=lambda y: np.roll(y, by))
    return Planted(case.file, case.real, labels=lambda y: (y + 1) % classes)


def _truncated(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    """Samples missing at the end, or zeros for the last 5 to 60 percent."""
    share = generator.uniform(0.05, 0.6)

    def cut(inputs: dict[str, Array]) -> dict[str, Array]:
        return {n: a[: round(len(a) * (1 - share))] for n, a in inputs.items()}

    def zeros(inputs: dict[str, Array]) -> dict[str, Array]:
        return {n: _cleared(a, round(len(a) * (1 - share))) for n, a in inputs.items()}

    change = cut if generator.integers(2) or case.name == "minilm" else zeros
    return Planted(case.file, case.real, inputs=change)


def _cleared(array: Array, start: int) -> Array:
    array = array.copy()
    array[start:] = 0
    return array


REGRESSIONS: dict[str, Regression] = {
    "wrong CPU": Regression(_wrong_cpu, ("kws",)),
    "saturating weights": Regression(_saturating, ALL),
    "flipped bits": Regression(_flipped, ALL),
    "slower than float": Regression(_slower, IMAGES),
    "swapped preprocessing": Regression(_swapped, IMAGES),
    "other tokenizer": Regression(_other_tokenizer, ("minilm",)),
    "dropped layer": Regression(_dropped_layer, ALL),
    "NaN on 1 % of samples": Regression(_not_a_number, ALL),
    "depthwise by another tool": Regression(_depthwise, ("kws",)),
    "stale float reference": Regression(_stale, IMAGES),
    "labels shifted": Regression(_labels_shifted, ALL),
    "truncated data": Regression(_truncated, ALL),
}


def _colours_of_data(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    swap = {n: (lambda a: np.ascontiguousarray(a[:, ::-1])) for n in case.inputs}
    return Planted(case.file, case.real, inputs=lambda i: {n: swap[n](a) for n, a in i.items()})


def _scale_of_data(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    factor = float(generator.choice([1 / 16, 1 / 4, 4, 64]))
    return Planted(
        case.file,
        case.real,
        inputs=lambda i: {n: (a * factor).astype(a.dtype) for n, a in i.items()},
    )


def _tokens_of_data(case: Case, generator: np.random.Generator, measure: Measure) -> Planted:
    order = generator.permutation(np.arange(1000, 30000))

    def change(inputs: dict[str, Array]) -> dict[str, Array]:
        ids = inputs["input_ids"]
        known = (ids >= 1000) & (ids < 30000)
        return {**inputs, "input_ids": np.where(known, order[(ids - 1000) % 29000], ids)}

    return Planted(case.file, case.real, inputs=change)


OTHERS: dict[str, Regression] = {
    "data of both files: other order of colours": Regression(_colours_of_data, IMAGES[1:]),
    "data of both files: other scale": Regression(_scale_of_data, IMAGES),
    "data of both files: other tokenizer": Regression(_tokens_of_data, ("minilm",)),
}
"""What is wrong with the samples for both files."""
