"""Codes of weights next to float weights: what rounding makes, and what another training does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import qtool
from qtool.backends.formats import open_file
from qtool.backends.model_file import ModelFile
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.evaluation.same_weights import WeightDeviation, check_same_weights, compare_weights
from tests.evaluation.onnx_files import linear_file

SHAPES = ((32, 64), (48, 32), (24, 16, 3, 3))
GENERATOR = np.random.default_rng(0)


class Stored:
    """A file that has nothing but constants."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def constants(self) -> Iterator[Array]:
        return iter(self._arrays)


def weights() -> list[Array]:
    draw = np.random.default_rng(1)
    return [draw.normal(size=shape).astype(np.float32) / 10 for shape in SHAPES]


def compared(codes: list[Array]) -> WeightDeviation:
    return compare_weights(cast(ModelFile, Stored(codes)), weights())


def steps_of(weight: Array, most: float = 127) -> Array:
    """A step per output channel."""
    peak = np.abs(weight.reshape(len(weight), -1)).max(1)
    steps: Array = peak.reshape(-1, *[1] * (weight.ndim - 1)) / most
    return steps


def nearest(weight: Array) -> Array:
    return np.rint(weight / steps_of(weight)).astype(np.int8)


def up_or_down(weight: Array) -> Array:
    exact = weight / steps_of(weight)
    return (
        (np.floor(exact) + GENERATOR.integers(0, 2, weight.shape)).clip(-128, 127).astype(np.int8)
    )


def scaled(weight: Array) -> Array:
    """Equalized, behind a folded BatchNorm."""
    rows, columns = (
        np.exp(GENERATOR.normal(size=weight.shape[axis])).reshape(
            -1, *[1] * (weight.ndim - 1 - axis)
        )
        for axis in (0, 1)
    )
    return nearest(weight * rows * columns)


def clipped(weight: Array) -> Array:
    """With a range that leaves out the largest percent."""
    step = np.quantile(np.abs(weight), 0.99) / 127
    codes: Array = np.rint(weight / step).clip(-127, 127).astype(np.int8)
    return codes


def with_zero_point(weight: Array) -> Array:
    step = (weight.max() - weight.min()) / 255
    codes: Array = np.rint((weight - weight.min()) / step).astype(np.uint8)
    return codes


def trained_on(steps: float) -> Callable[[Array], Array]:
    """Weights that moved by so many steps, root mean square."""
    return lambda w: nearest(w + steps * steps_of(w) * GENERATOR.normal(size=w.shape))


@pytest.mark.parametrize("quantize", [nearest, up_or_down, scaled, clipped, with_zero_point])
def test_rounding_leaves_less_than_a_step(quantize: Callable[[Array], Array]) -> None:
    found = compared([quantize(w) for w in weights()])
    assert (found.layers, found.other, found.is_other) == (3, 0, False), found
    assert 0.2 < found.steps < 0.65


def test_weights_of_few_bits_are_compared_at_their_ends_too() -> None:
    codes = [np.rint(w / steps_of(w, 1)).astype(np.int8) for w in weights()]
    assert not compared(codes).is_other


@pytest.mark.parametrize("turn", [lambda w: w, lambda w: w.T], ids=["same order", "transposed"])
def test_another_training_moves_weights_further(turn: Callable[[Array], Array]) -> None:
    found = compared([turn(trained_on(1.0)(w)) for w in weights()[:2]])
    assert found.other == found.layers == 2
    assert found.is_other
    assert 0.9 < found.steps < 1.2


def test_what_has_no_similar_float_weight_is_left_out() -> None:
    assert compared([nearest(GENERATOR.normal(size=SHAPES[0]))]).layers == 0


def quantized_file(path: Path, codes: Array, steps: Array) -> Path:
    model = onnx.load(linear_file(path, codes))
    del model.graph.initializer[:]
    stored = {"codes": codes, "steps": steps.reshape(-1).astype(np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in stored.items())
    node = helper.make_node("DequantizeLinear", list(stored), ["w"], axis=0)
    model.graph.node.insert(0, node)
    onnx.save(model, path)
    return path


def test_a_stale_float_file_with_the_same_answers_is_not_comparable(tmp_path: Path) -> None:
    weight = weights()[0]
    file = quantized_file(tmp_path / "int8.onnx", nearest(weight), steps_of(weight))
    moved = weight + 1.5 * steps_of(weight) * GENERATOR.normal(size=weight.shape)
    x = np.random.default_rng(2).normal(size=(400, 32)).astype(np.float32)
    outcomes = [
        str(qtool.gate(file, linear_file(tmp_path / "float.onnx", real), [x], max_drop=0.2).outcome)
        for real in (weight, moved)
    ]
    assert outcomes == ["accepted", "not comparable"]


def test_weights_with_an_axis_of_one_and_of_three_are_compared() -> None:
    draw = np.random.default_rng(3)
    weight = draw.normal(size=(24, 16, 5)).astype(np.float32)
    moved = trained_on(1.5)(weight)
    for codes, other in ((nearest(weight), 0), (moved, 1)):
        for turned in (codes, codes.transpose(0, 2, 1)[:, None]):  # a 1-d convolution in .tflite
            stored = cast(ModelFile, Stored([turned]))
            compared = compare_weights(stored, [weight])
            assert (compared.layers, compared.other) == (1, other)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Array]]:
    """A quantized file, a float file with other weights that answers alike, and data."""
    folder, weight = tmp_path_factory.mktemp("pair"), weights()[0]
    file = quantized_file(folder / "int8.onnx", nearest(weight), steps_of(weight))
    moved = weight + 1.5 * steps_of(weight) * GENERATOR.normal(size=weight.shape)
    x = np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32)
    return file, linear_file(folder / "float.onnx", moved), [x]


QUICK = qtool.ReportOptions(seconds=0.01, batch_sizes=(1,))
Call = Callable[..., object]
CALLS: dict[str, Call] = {
    "evaluate": lambda f, g, x, _, **o: qtool.evaluate(f, qtool.load_model(g), x, seconds=0, **o),
    "evaluate, a path": lambda f, g, x, _, **o: qtool.evaluate(f, g, x, seconds=0, **o),
    "report, a path": lambda f, g, x, to, **o: qtool.report(f, x, to, QUICK, model=g, **o),
    "report, a model": lambda f, g, x, to, **o: qtool.report(
        f, x, to, QUICK, model=qtool.load_model(g), **o
    ),
    "compare": lambda f, g, x, _, **o: qtool.compare([g, f], x, None, QUICK, **o),
    "compare, a reference": lambda f, g, x, _, **o: qtool.compare(
        [f, g], x, None, QUICK, reference=g, **o
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_compares_with_other_weights_unless_asked_to(
    call: str, pair: tuple[Path, Path, list[Array]], tmp_path: Path
) -> None:
    file, real, data = pair
    text = r"1 of 1 weights are 1\.\d steps from those of float.onnx, .* 'other_model'"
    with pytest.raises(VerificationError, match=text):
        CALLS[call](file, real, data, tmp_path / "r")
    CALLS[call](file, real, data, tmp_path / "r", other_model=True)


def test_gptq_on_inputs_of_a_low_rank_is_no_other_model(tmp_path: Path) -> None:
    """Weights of inputs that do not count move by up to a step, of 108 rows, 104 columns."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(104, 64)).eval()
    noise = 0.01 * torch.randn(256, 104)
    x = torch.randn(256, 3) @ torch.randn(3, 104) + noise
    qtool.capture_model(model, x).export_float(tmp_path / "float.onnx")
    qtool.quantize(model, [x], recover=["gptq"]).export(tmp_path / "int8.onnx")
    floats = list(open_file(tmp_path / "float.onnx").constants())
    file = open_file(tmp_path / "int8.onnx")
    assert compare_weights(file, floats).is_other
    check_same_weights(file, floats, "float.onnx")


def test_the_file_that_a_model_was_read_from_is_known_by_its_weights(tmp_path: Path) -> None:
    """GPTQ on inputs of rank one moves weights by several steps; the file has its BatchNorms."""
    draw = np.random.default_rng(0)
    values = {
        f"w{i}": draw.normal(size=(32, 32 if i else 3, 3, 3)) / (9, 17)[i > 0] for i in range(4)
    }
    norms = {"s": (0.5, 2), "b": (-1, 1), "m": (-1, 1), "v": (0.5, 2)}
    values |= {f"{n}{i}": draw.uniform(*ends, 32) for n, ends in norms.items() for i in range(3)}

    def written(path: Path) -> Path:
        layers = [
            f"c{i} = Conv (r{i}, w{i}) n{i} = BatchNormalization (c{i}, s{i}, b{i}, m{i}, v{i}) "
            f"r{i + 1} = Relu (n{i})"
            for i in range(3)
        ]
        model = onnx.parser.parse_model(
            f"""<ir_version: 9, opset_import: ["" : 17]>
            g (float[N,3,12,12] r0) => (float[N,32,4,4] y) {{
                {" ".join(layers)} y = Conv (r3, w3) }}"""
        )
        named = ((n, v.astype(np.float32)) for n, v in values.items())
        model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in named)
        onnx.save(model, path)
        return path

    real, shades = written(tmp_path / "float.onnx"), torch.linspace(0, 1, 64).reshape(-1, 1, 1, 1)
    x = shades * torch.ones(64, 3, 12, 12)
    qtool.quantize(qtool.load_onnx(real), [x], recover=["gptq"]).export(tmp_path / "int8.onnx")
    file, floats = open_file(tmp_path / "int8.onnx"), list(open_file(real).constants())
    assert compare_weights(file, floats, 1.2).is_other
    check_same_weights(file, floats, "float.onnx")
    values["w3"] += 0.1 * draw.normal(size=values["w3"].shape)
    other = open_file(written(tmp_path / "other.onnx")).constants()
    with pytest.raises(VerificationError, match="weights are"):
        check_same_weights(file, other, "other.onnx")


@pytest.mark.parametrize("code", [nearest, clipped])
def test_weights_of_another_start_are_like_none(code: Callable[[Array], Array]) -> None:
    """The same network trained from another seed, which may have the same accuracy."""

    class OfAnotherTool(Stored):
        path = Path("int8.onnx")

        def conversion(self) -> None:
            """Return nothing: another tool made it."""

    draw = np.random.default_rng(7)
    other = [code(draw.normal(size=shape) / 10) for shape in SHAPES]
    result = compared(other)
    assert (result.layers, result.unlike) == (0, len(SHAPES))
    file = cast(ModelFile, OfAnotherTool(other))
    with pytest.raises(VerificationError, match="none of 3 weights is like one of float"):
        check_same_weights(file, weights(), "float")
    own = cast(ModelFile, OfAnotherTool([code(weight) for weight in weights()]))
    assert check_same_weights(own, weights(), "float").unlike == 0


def test_codes_with_a_scale_for_each_block_are_left_out(tmp_path: Path) -> None:
    """A factor for each row and column does not say what they stand for."""
    real = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    blocks = real.reshape(64, 2, 32)
    scale = np.abs(blocks).max(2) / 127 * np.array([1, 4], np.float32)
    codes = np.rint(blocks / scale[..., None]).astype(np.int8).reshape(64, 64)
    stored = [numpy_helper.from_array(a, n) for n, a in (("c", codes), ("s", scale))]
    nodes = [
        helper.make_node("DequantizeLinear", ["c", "s"], ["w"], axis=1, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 64]) for n in "xy"]
    graph = helper.make_graph(nodes, "blocks", ports[:1], ports[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "blocks.onnx")
    file = open_file(tmp_path / "blocks.onnx")
    assert check_same_weights(file, [real], "float").layers == 0
