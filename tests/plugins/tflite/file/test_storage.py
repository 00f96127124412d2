"""TFLite files: written and read back, and refused in one sentence where they are malformed."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qtool.core.errors import ExportError, FileError
from qtool.plugins.tflite.file import (
    Model,
    Operator,
    PortNames,
    Quantization,
    Tensor,
    from_bytes,
    load,
    save,
    to_bytes,
)


def model() -> Model:
    codes = Quantization(np.array([0.5], np.float32), np.array([-3], np.int64))
    channels = Quantization(np.array([0.1, 0.2], np.float32), np.zeros(2, np.int64), 0)
    weight = np.arange(6, dtype=np.int8).reshape(2, 3)
    tensors = (
        Tensor("x", "int8", (1, 3), (-1, 3), quantization=codes),
        Tensor("w", "int8", (2, 3), data=weight, quantization=channels),
        Tensor("b", "int32", (2,), data=np.array([7, -7], np.int32)),
        Tensor("y", "int8", (1, 2), (-1, 2), quantization=codes),
    )
    options = {"keep_num_dims": True, "fused_activation_function": 1}
    operators = (Operator("FULLY_CONNECTED", (0, 1, 2), (3,), options, 5),)
    return Model(
        tensors, operators, (0,), (3,), "text", {"note": b"{}"}, PortNames(("in",), ("out",))
    )


def test_equal_scales_and_zero_points_are_stored_once() -> None:
    params = Quantization(np.full(500, 0.1, np.float32), np.zeros(500, np.int64), 0)
    weight = np.zeros((500, 1), np.int8)

    def size(count: int) -> int:
        stored = (
            Tensor(f"w{i}", "int8", (500, 1), data=weight, quantization=params)
            for i in range(count)
        )
        file = to_bytes(Model(tuple(stored), (), (), ()))
        assert all(
            (t.quantization.scale == params.scale).all()
            for t in from_bytes(file).tensors
            if t.quantization
        )
        return len(file)

    assert size(2) - size(1) < 500 * (1 + 4)


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(model(), tmp_path / "model.tflite")
    read, written = load(tmp_path / "model.tflite"), model()
    assert (read.inputs, read.outputs, read.description) == ((0,), (3,), "text")
    assert (read.names, read.metadata) == ((("in",), ("out",)), {"note": b"{}"})
    for a, b in zip(read.tensors, written.tensors, strict=True):
        assert (a.name, a.type, a.shape, a.signature) == (b.name, b.type, b.shape, b.signature)
        assert (a.data is None) is (b.data is None)
        assert a.data is None or np.array_equal(a.data, b.data)
        assert (a.quantization is None) is (b.quantization is None)
        if a.quantization is not None and b.quantization is not None:
            assert np.array_equal(a.quantization.scale, b.quantization.scale)
            assert np.array_equal(a.quantization.zero_point, b.quantization.zero_point)
    (operator,) = read.operators
    assert (operator.name, operator.inputs, operator.version) == ("FULLY_CONNECTED", (0, 1, 2), 5)
    assert operator.options["keep_num_dims"] is True
    assert operator.options["fused_activation_function"] == 1


def test_equal_constants_are_stored_once() -> None:
    single, plain = model(), to_bytes(model())
    weight = single.tensors[1]
    again = Model(
        (*single.tensors, Tensor("w2", "int8", (2, 3), data=weight.data)),
        single.operators,
        single.inputs,
        single.outputs,
        names=PortNames(("in",), ("out",)),
    )
    assert len(to_bytes(again)) < len(plain) + 120


CUTS = {"nothing": b"", "text": b"hello, this is no model", "mark alone": b"\x08\0\0\0TFL3"}


@pytest.mark.parametrize("data", CUTS.values(), ids=CUTS.keys())
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FileError, match="is not a valid TFLite file"):
        from_bytes(data)


def refusal(data: bytes) -> str | None:
    """Return the message of the error for some bytes, None if they are read."""
    try:
        from_bytes(data)
    except FileError as error:
        return str(error)
    return None


def test_mutated_files_are_read_or_refused_in_a_sentence() -> None:
    """Every byte that is read may be anything: no exception but `FileError`, and no long loop."""
    original, generator = to_bytes(model()), np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        data = bytearray(original)
        for place in generator.integers(len(data), size=generator.integers(1, 4)):
            data[place] = generator.integers(256)
        message = refusal(bytes(data[: generator.integers(len(data) // 2, len(data) + 1)]))
        refused += message is not None
        assert "\n" not in (message or "")
    assert refused > 40


def test_a_tensor_that_is_read_before_it_is_computed_is_refused() -> None:
    correct = model()
    wrong = Model(correct.tensors, correct.operators, (), (3,), names=PortNames((), ("out",)))
    with pytest.raises(FileError, match="reads 'x', which is not computed before it"):
        from_bytes(to_bytes(wrong))


def test_a_name_that_many_tensors_share_does_not_fill_the_memory() -> None:
    """A megabyte whose 100,000 tensors are one table, with a name of half a megabyte."""
    count, length, data = 100_000, 600_000, bytearray(b"\0\0\0\0TFL3")

    def put(*numbers: int, form: str = "<I") -> int:
        data.extend(bytes(-len(data) % 4))
        start = len(data)
        for number in numbers:
            data.extend(struct.pack(form, number))
        return start

    def table(slot: int) -> int:
        """Write a table of one offset, and return where that is."""
        vtable = put(6 + 2 * slot, 8, *[0] * slot, 4, form="<H")
        start = put(len(data) + (-len(data) % 4) - vtable, form="<i")
        return put(0) + 0 * start

    def point(place: int, at: int) -> None:
        struct.pack_into("<I", data, place, at - place)

    place = table(2)  # subgraphs of a model
    point(0, place - 4)
    graphs = put(1, 0)
    point(place, graphs)
    place = table(0)  # tensors of a subgraph
    point(graphs + 4, place - 4)
    tensors = put(count)
    point(place, tensors)
    data.extend(bytes(4 * count))
    place = table(3)  # the name of a tensor
    for i in range(count):
        point(tensors + 4 + 4 * i, place - 4)
    point(place, put(length))
    data.extend(b"a" * length)
    assert "its names are longer than the file" in str(refusal(bytes(data)))


def test_a_tensor_with_two_ranks_is_refused() -> None:
    correct = model()
    tensors = (replace(correct.tensors[0], signature=(-1,) * 7), *correct.tensors[1:])
    with pytest.raises(FileError, match="has shapes of 7 and"):
        from_bytes(to_bytes(replace(correct, tensors=tensors)))


@pytest.mark.parametrize("kind", ["resource", "bfloat16"])
def test_types_that_are_not_written(kind: str) -> None:
    correct = model()
    tensors = (replace(correct.tensors[0], type=kind), *correct.tensors[1:])
    with pytest.raises(ExportError, match=f"is of the type {kind}, which qtool does not write"):
        to_bytes(replace(correct, tensors=tensors))
