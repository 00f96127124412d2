"""The files of an encoder-decoder, with the keys and values of cross-attention in the other one.

A `MergedDecoder` computes keys and values of the encoder states that its cache does not hold. Some
runtimes want the encoder to return them instead. Both forms have the same nodes: those from the
states to the keys and values move from one file to the other.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool.core.atomic import write_atomic
from qtool.core.errors import ExportError
from qtool.core.remedies import Argument

STATES, ENCODED = "encoder_hidden_states", "last_hidden_state"
"""Encoder states, as the decoder and as the encoder name them."""
_PREFIX = "cross_attention/"


@dataclass(frozen=True)
class CrossCache:
    """The cache of cross-attention.

    Attributes:
        names: name of each key and value, in order of the layers, such as "0.encoder.key".
        heads, width: sizes of keys and values [batch, heads, length, width].
    """

    names: tuple[str, ...]
    heads: int
    width: int

    def past(self, name: str) -> str:
        """Return the name of an input of the decoder."""
        return f"past_key_values.{name}"

    def present(self, name: str) -> str:
        """Return the name of an output."""
        return f"present.{name}"


def cross_cache(layers: int, heads: int, width: int) -> CrossCache:
    """Return the cache of a decoder.

    Args:
        layers: number of decoder layers.
        heads, width: see `CrossCache`.
    """
    kinds = ("key", "value")
    return CrossCache(
        tuple(f"{i}.encoder.{kind}" for i in range(layers) for kind in kinds), heads, width
    )


def write_cross_attention(
    encoder: Path,
    decoder: Path,
    encoder_with_pairs: Path,
    decoder_with_pairs: Path,
    cache: CrossCache,
) -> None:
    """Write an encoder that returns keys and values, and a decoder that takes them.

    The weights stay where they are.

    Args:
        encoder, decoder: the files of a `StatesEncoder` and of a `MergedDecoder`.
        encoder_with_pairs, decoder_with_pairs: paths of the new files, in a folder above or the
            same.
        cache: the names.

    Raises:
        ExportError: the decoder is not the file of a `MergedDecoder`.
        FileError: a file cannot be written.
    """
    models = [onnx.load(path, load_external_data=False) for path in (encoder, decoder)]
    folder = encoder_with_pairs.parent
    places = [stored_places(p, p.relative_to(folder).as_posix()) for p in (encoder, decoder)]
    audio, moved = encoder_with(models[0], models[1], cache)
    places[0] |= {own: places[1][name] for own, name in moved.items() if name in places[1]}
    for model, path, stored in (
        (audio, encoder_with_pairs, places[0]),
        (decoder_without(models[1], cache), decoder_with_pairs, places[1]),
    ):
        refer(model, stored, encoder.parent.relative_to(folder).as_posix())
        write_atomic(path, model.SerializeToString())


def decoder_without(decoder: onnx.ModelProto, cache: CrossCache) -> onnx.ModelProto:
    """Return the decoder with keys and values of all encoder states as inputs.

    Raises:
        ExportError: it is not the file of a `MergedDecoder`.
    """
    renamed = {cache.present(n): cache.past(n) for n in cache.names}
    _new_values(decoder, cache)
    model = onnx.ModelProto()
    model.CopyFrom(decoder)
    graph = model.graph
    nodes = [n for n in graph.node if n.output[0] not in renamed]
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    outputs = [o for o in graph.output if o.name not in renamed]
    return _part(model, nodes, outputs)


def encoder_with(
    encoder: onnx.ModelProto, decoder: onnx.ModelProto, cache: CrossCache
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the encoder with the keys and values of its states as outputs.

    Args:
        encoder, decoder: models of a `StatesEncoder` and of a `MergedDecoder`.
        cache: the names.

    Returns:
        The model, and: name of each constant that comes from the decoder -> its name there.

    Raises:
        ExportError: the decoder is not the file of a `MergedDecoder`.
    """
    new = _new_values(decoder, cache)
    nodes = _needed(decoder.graph.node, new.values())
    stored = {t.name: t for t in decoder.graph.initializer}
    read = dict.fromkeys(name for node in nodes for name in node.input if name in stored)
    empty = f"{_PREFIX}empty"
    renamed = {STATES: ENCODED, **{cache.past(n): empty for n in cache.names}, "": ""}
    model = onnx.ModelProto()
    model.CopyFrom(encoder)
    graph = model.graph
    for name in read:
        tensor = graph.initializer.add()
        tensor.CopyFrom(stored[name])
        tensor.name = _PREFIX + name
    _add_empty_cache(graph, empty, cache)
    for node in nodes:
        moved = graph.node.add()
        moved.CopyFrom(node)
        moved.name = _PREFIX + node.name
        moved.input[:] = [renamed.get(name, _PREFIX + name) for name in node.input]
        moved.output[:] = [_PREFIX + name for name in node.output]
    for name, value in new.items():
        output = cache.present(name)
        graph.node.append(helper.make_node("Identity", [_PREFIX + value], [output]))
        shape: list[str | int | None] = ["batch_size", cache.heads, "length", cache.width]
        graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
    known = {o.domain for o in model.opset_import}
    model.opset_import.extend(o for o in decoder.opset_import if o.domain not in known)
    return model, {_PREFIX + name: name for name in read}


def _new_values(decoder: onnx.ModelProto, cache: CrossCache) -> dict[str, str]:
    """Return name in the cache -> the value that the decoder appends there.

    Raises:
        ExportError: it appends none.
    """
    makers = {name: node for node in decoder.graph.node for name in node.output}
    new = {}
    for name in cache.names:
        maker = makers.get(cache.present(name))
        if maker is None or maker.op_type != "Concat" or maker.input[0] != cache.past(name):
            raise ExportError(
                f"the decoder does not append to '{cache.past(name)}'",
                Argument("--task", text="convert the model with a {} that ends in -with-past"),
            )
        new[name] = maker.input[1]
    return new


def _add_empty_cache(graph: onnx.GraphProto, name: str, cache: CrossCache) -> None:
    """Add a cache without states, of as many samples as the encoder has."""
    rest = np.array([cache.heads, 0, cache.width])
    constants = {f"{name}.rest": rest, f"{name}.zero": np.zeros(1, np.float32)}
    for key, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, key))
    graph.node.extend(
        [
            helper.make_node("Shape", [ENCODED], [f"{name}.batch"], start=0, end=1),
            helper.make_node("Concat", [f"{name}.batch", f"{name}.rest"], [f"{name}.size"], axis=0),
            helper.make_node("Expand", [f"{name}.zero", f"{name}.size"], [name]),
        ]
    )


def _needed(nodes: Sequence[onnx.NodeProto], values: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that values depend on, in order."""
    needed, chosen = set(values), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed.update(node.input)
            chosen.append(node)
    return chosen[::-1]


def _part(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """Return a model with these outputs and what they depend on."""
    graph = model.graph
    needed = _needed(nodes, [o.name for o in outputs])
    read = {name for node in needed for name in node.input}
    part = helper.make_graph(
        needed,
        graph.name,
        [i for i in graph.input if i.name in read],
        outputs,
        [t for t in graph.initializer if t.name in read],
    )
    return helper.make_model(
        part,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        functions=model.functions,
    )


# Files that keep their weights in other ONNX files.
#
# ONNX stores a large tensor as a range of bytes of another file; here that file is an ONNX file,
# whose message holds the bytes, so that two graphs on the same weights need them once.


_LEAST = 1024  # bytes of a tensor that is worth a reference
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_SIZES = {_DOUBLE: 8, _FLOAT: 4}
# numbers of fields: graph of a model, initializer of a graph, name and raw_data of a tensor
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9


@dataclass(frozen=True)
class Place:
    """Where the bytes of a tensor are.

    Attributes:
        location: path of the file, relative to that of the reading model.
        offset, length: first byte, and number of bytes.
    """

    location: str
    offset: int
    length: int


def stored_places(path: Path, location: str) -> dict[str, Place]:
    """Return where an ONNX file holds the bytes of its constants, by their names.

    Args:
        path: the file.
        location: how the reading model names it.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tensors = [
            tensor
            for graph in _ranges(data, (0, len(data)), _GRAPH)
            for tensor in _ranges(data, graph, _INITIALIZER)
        ]
        places = {}
        for tensor in tensors:
            for start, end in _ranges(data, tensor, _RAW_DATA):
                ((first, last),) = _ranges(data, tensor, _NAME)
                places[data[first:last].decode()] = Place(location, start, end - start)
        return places


def refer(model: onnx.ModelProto, places: Mapping[str, Place], folder: str) -> None:
    """Replace the bytes of large constants by references, in place.

    Args:
        model: its constants without a place stay, but for references to files of their own.
        places: name of a constant -> where its bytes are.
        folder: folder of the files that the constants refer to so far, relative to that of the
            model.
    """
    for tensor in model.graph.initializer:
        place = places.get(tensor.name)
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = (Path(folder) / entry.value).as_posix()
        if place is None or len(tensor.raw_data) < _LEAST:
            continue
        assert place.length == len(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        values = {"location": place.location, "offset": place.offset, "length": place.length}
        for key, value in values.items():
            tensor.external_data.add(key=key, value=str(value))


def _ranges(data: mmap.mmap, within: tuple[int, int], number: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each field of bytes with a number, in a range of a message."""
    at, end = within
    while at < end:
        key, at = _varint(data, at)
        kind, size = key & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
        else:
            size = _SIZES[kind]
        if key >> 3 == number and kind == _BYTES:
            yield at, at + size
        at += size


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the low ones first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
