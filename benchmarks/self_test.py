"""Detection of one flipped bit in one weight by the self-test of a file.

    python benchmarks/self_test.py FOLDER [--files 50] [--networks digits,kws] [--seed 0]

FOLDER holds the networks of `realdata.py`. Each network is quantized with default settings. Then
one bit of one int8 weight is flipped: tensor, element and bit are drawn. The digest of the content
detects every one, so only codes count here. A flip that changes no code of the test is
explained, or counted as unexplained:

    dead input       the input channel of the weight is at its zero point in all samples
    dead output      the output channel gives the same code everywhere
    below rounding   the weight moves every result of its layer by less than one code
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import qtool
from qtool.api.data import load_data
from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, name_of
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnxruntime.self_test.inputs import generate_inputs
from qtool.backends.onnxruntime.self_test.observed_tensors import TensorReader, observed_tensors
from qtool.backends.onnxruntime.self_test.run import check_self_test
from qtool.frontends.load_model import load_model

NETWORKS = ("digits", "resnet20", "mobilenetv2_w05", "kws")
ROOT = Path(__file__).parents[1]
KINDS = ("detected", "dead input", "dead output", "below rounding", "unexplained")


@dataclass(frozen=True)
class Flip:
    """One bit of one element of a stored weight."""

    tensor: str
    place: tuple[int, ...]
    bit: int

    def written(self, source: Path, to: Path) -> None:
        model = onnx.load(source)
        stored = next(t for t in model.graph.initializer if t.name == self.tensor)
        codes = np.frombuffer(stored.raw_data, np.uint8).copy()
        codes[np.ravel_multi_index(self.place, tuple(stored.dims))] ^= np.uint8(1 << self.bit)
        stored.raw_data = codes.tobytes()
        onnx.save(model, to)

    def change(self, code: int) -> int:
        """By how much the code moves."""
        flipped = np.array([code], np.int8).view(np.uint8) ^ np.uint8(1 << self.bit)
        return abs(int(flipped.view(np.int8)[0]) - code)


class Explainer:
    """Values of the self-test of an unchanged file, from which a flip is explained."""

    def __init__(self, path: Path) -> None:
        self.file, test = OnnxModel.of(path), SelfTest.of(onnx.load(path))
        assert test is not None
        names = observed_tensors(self.file)
        observer = TensorReader(path, names, [name_of(v) for v in self.file.outputs])
        runs = [list(observer.values(inputs)) for inputs in generate_inputs(self.file, test)]
        self.values = {name: np.concatenate([r[i] for r in runs]) for i, name in enumerate(names)}

    def kind(self, flip: Flip) -> str:
        """Why a flip changes no code; see the head of this file."""
        weight = self.file.graph.initializers[flip.tensor]
        node = _only_reader(_only_reader(weight).outputs[0])
        zero, codes = self._input(node)
        channel, out = _channels(node, flip.place, weight.shape)
        read = np.abs(codes[:, channel].astype(np.int64) - zero)
        if not read.any():
            return "dead input"
        result, step = self._result(node.outputs[0])
        if result is not None and np.unique(result[:, out]).size == 1:
            return "dead output"
        scales = [np.ravel(array_of(v.producer.inputs[1])) for v in node.inputs[:2]]
        factor = scales[0][0] * scales[1][out if scales[1].size > 1 else 0]
        moved = flip.change(int(array_of(weight)[flip.place])) * int(read.max()) * factor
        return "below rounding" if step and moved < step else "unexplained"

    def _input(self, node: Node) -> tuple[int, np.ndarray]:
        """Zero point and codes of what a layer reads; a Pad of codes is gone back through."""
        dequantize = node.inputs[0].producer
        value, zero = dequantize.inputs[0], int(array_of(dequantize.inputs[2]))
        if name_of(value) in self.values:
            return zero, self.values[name_of(value)]
        pad = value.producer
        pads = array_of(pad.inputs[1]).reshape(2, -1).T
        return zero, np.pad(self.values[name_of(pad.inputs[0])], pads, constant_values=zero)

    def _result(self, value: Value) -> tuple[np.ndarray | None, float]:
        """The codes that a layer gives, and their step; nothing where it gives floats."""
        while name_of(value) not in self.values:
            value = _only_reader(value).outputs[0]
        maker = value.producer
        step = float(array_of(maker.inputs[1])) if maker.op_type == "QuantizeLinear" else 0.0
        return self.values[name_of(value)] if step else None, step


def _only_reader(value: Value) -> Node:
    return value.uses[0].node


def _channels(node: Node, place: Sequence[int], shape: Sequence[int]) -> tuple[int, int]:
    """The input and the output channel of a weight."""
    if len(shape) == 2:
        rows = node.op_type == "Gemm" and node.attributes.get("transB") == 1
        return (place[1], place[0]) if rows else (place[0], place[1])
    groups = node.attributes.get("group", 1)
    return place[1] + place[0] // (shape[0] // groups) * shape[1], place[0]


def drawn(path: Path, count: int, generator: np.random.Generator) -> list[Flip]:
    """Random flips of the int8 weights of a file."""
    weights = [
        t
        for t in onnx.load(path).graph.initializer
        if t.data_type == onnx.TensorProto.INT8 and len(t.dims) > 1
    ]
    found = []
    for _ in range(count):
        tensor = weights[generator.integers(len(weights))]
        place = tuple(int(generator.integers(size)) for size in tensor.dims)
        found.append(Flip(tensor.name, place, int(generator.integers(8))))
    return found


def judged(path: Path, flips: Sequence[Flip]) -> list[str]:
    """What becomes of each flip: one of `KINDS`."""
    explainer, found = Explainer(path), []
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / path.name
        for flip in flips:
            flip.written(path, other)
            checked = check_self_test(other)
            assert checked.unmodified is False
            codes_differ = bool(checked.failure) or not (checked.exact and checked.near)
            found.append("detected" if codes_differ else explainer.kind(flip))
    return found


def _write(folder: Path, name: str, path: Path) -> None:
    """Writes the int8 file of a network."""
    if name == "digits":
        model = load_model(
            "examples.digits.network:digits_net", ROOT / "examples/digits/weights.safetensors"
        )
        batches = load_data(ROOT / "calib_data/digits")
    else:
        import realdata  # next to this file, when it is run

        network = realdata.load(folder, name)
        model, batches = network.model, network.calibration
    qtool.quantize(model, batches).export(path, timing=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=50, help="of each network")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("  ".join(c.rjust(15) for c in ("network", *KINDS)))
    for name in options.networks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            _write(options.folder, name, path)
            flips = drawn(path, options.files, np.random.default_rng(options.seed))
            kinds = judged(path, flips)
        counts = Counter(kinds)
        print("  ".join(str(c).rjust(15) for c in (name, *(counts[k] for k in KINDS))), flush=True)
        for flip, kind in zip(flips, kinds, strict=True):
            if kind == "unexplained":
                print(f"    {flip}")


if __name__ == "__main__":
    main()
