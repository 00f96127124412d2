"""TFLite models of other tools as programs: forms that qtool does not write, and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qtool.core.errors import KernelError
from qtool.plugins.tflite.engine import lower
from qtool.plugins.tflite.file import Model, Operator, PortNames, Quantization, Tensor, save
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_litert_codes
from tests.needs import needs_litert

GENERATOR = np.random.default_rng(0)


def codes(name: str, shape: tuple[int, ...], scale: float, zero: int) -> Tensor:
    params = Quantization(np.array([scale], np.float32), np.array([zero], np.int64))
    return Tensor(name, "int8", shape, quantization=params)


def weight(name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    params = Quantization(np.array([scale], np.float32), np.zeros(1, np.int64))
    values = GENERATOR.integers(-127, 128, shape).astype(np.int8)
    return Tensor(name, "int8", shape, data=values, quantization=params)


def numbers(name: str, *values: int) -> Tensor:
    return Tensor(name, "int32", (len(values),), data=np.array(values, np.int32))


def foreign() -> Model:
    """Weights with one scale, SAME with strides, a layer without bias, equal names."""
    tensors = (
        codes("x", (1, 7, 9, 3), 0.03, 5),
        weight("w", (6, 3, 3, 3), 0.01),
        numbers("b", *GENERATOR.integers(-500, 500, 6)),
        codes("same", (1, 4, 5, 6), 0.05, -128),
        codes("same", (1, 2, 3, 6), 0.05, -128),
        numbers("axes", 1, 2),
        codes("mean", (1, 6), 0.03, -100),
        weight("v", (4, 6), 0.02),
        codes("out", (1, 4), 0.3, 3),
        codes("softmax", (1, 4), 1 / 256, -128),
    )
    window = {"padding": 0, "stride_h": 2, "stride_w": 2}
    operators = (
        Operator("CONV_2D", (0, 1, 2), (3,), {**window, "fused_activation_function": 1}, 3),
        Operator("AVERAGE_POOL_2D", (3,), (4,), {**window, "filter_height": 3, "filter_width": 3}),
        Operator("MEAN", (4, 5), (6,), {}, 2),
        Operator("FULLY_CONNECTED", (6, 7, -1), (8,), {}, 4),
        Operator("SOFTMAX", (8,), (9,), {"beta": 1.0}, 2),
    )
    return Model(tensors, operators, (0,), (9,), names=PortNames(("x",), ("y",)))


@needs_litert
def test_files_of_other_tools_are_compared(tmp_path: Path) -> None:
    save(foreign(), tmp_path / "model.tflite")
    batch = [GENERATOR.integers(-128, 128, (16, 7, 9, 3)).astype(np.int8)]
    result = compare_litert_codes(TfliteFile(tmp_path / "model.tflite"), [batch])
    assert result.exact
    assert result.passed
    assert result.elements == 64


def test_a_program_names_its_tensors_once() -> None:
    program = lower(foreign(), "tflite")
    assert [s.output for s in program.instructions] == ["same", "same#4", "mean", "out", "softmax"]
    assert {s.kind for s in program.instructions} == {"integer"}


def changed(at: int, **fields: object) -> Model:
    model = foreign()
    operators = list(model.operators)
    operators[at] = replace(operators[at], **fields)  # type: ignore[arg-type]
    return replace(model, operators=tuple(operators))


REFUSALS = {
    "subgraphs": (replace(foreign(), subgraphs=2), "2 subgraphs"),
    "operator": (changed(4, name="LOG_SOFTMAX"), "no integer kernel of this operator"),
    "custom": (changed(4, name="Mine", custom=True), "no integer kernel of this operator"),
    "activation": (
        changed(0, options={"fused_activation_function": 5, "stride_h": 1, "stride_w": 1}),
        "fuses activation 5",
    ),
    "beta": (changed(4, options={"beta": 0.5}), "with beta 0.5"),
    "stride": (changed(0, options={}), "has the stride"),
}


@pytest.mark.parametrize(("model", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_the_engine_does_not_know_is_refused_by_name(model: Model, message: str) -> None:
    with pytest.raises(KernelError, match=message) as refusal:
        lower(model, "tflite")
    assert any(t.name in str(refusal.value) for t in model.tensors) or model.subgraphs > 1


@needs_litert
def test_float_sums_beyond_the_range_are_those_of_the_runtime(tmp_path: Path) -> None:
    """LiteRT's kernel ends at the largest float, XNNPACK's at infinity."""
    tensors = tuple(Tensor(n, "float32", (1, 4)) for n in "abo")
    model = Model(
        *(tensors, (Operator("ADD", (0, 1), (2,), {}, 1),), (0, 1), (2,)),
        names=PortNames(("a", "b"), ("o",)),
    )
    save(model, tmp_path / "model.tflite")
    file = TfliteFile(tmp_path / "model.tflite")
    batch = [
        np.array([[np.inf, 3e38, -3e38, np.nan]], np.float32),
        np.full((1, 4), 3e38, np.float32),
    ]
    for program, default in ((file.program(), False), (file.default_program(), True)):
        (expected,) = file.codes(batch, default=default)
        (actual,) = file.engine_codes(program, batch)
        assert np.array_equal(expected, actual, equal_nan=True)


EXTREMES = {  # sizes, axes, dimensions are kept, zero point
    "channels": ((2, 5, 7, 3), (3,), True, -128),
    "positions": ((1, 4, 5, 6), (1, 2), False, 17),
    "time": ((3, 9, 8), (-2,), False, 127),
    "all": ((4, 6), (0, 1), False, 0),
}


@needs_litert
@pytest.mark.parametrize("kind", ["REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_along_axes_are_codes_of_the_input(name: str, kind: str, tmp_path: Path) -> None:
    sizes, axes, kept, zero = EXTREMES[name]
    gone = {a % len(sizes) for a in axes}
    result = tuple(1 if i in gone else n for i, n in enumerate(sizes) if kept or i not in gone)
    tensors = (
        codes("x", sizes, 0.03, zero),
        numbers("axes", *axes),
        codes("y", result, 0.03, zero),
    )
    operator = Operator(kind, (0, 1), (2,), {"keep_dims": kept}, 2)
    save(
        Model(tensors, (operator,), (0,), (2,), names=PortNames(("x",), ("y",))),
        tmp_path / "m.tflite",
    )
    drawn = GENERATOR.integers(-128, 128, sizes).astype(np.int8)
    assert compare_litert_codes(TfliteFile(tmp_path / "m.tflite"), [[drawn]]).exact
