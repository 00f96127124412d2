"""ONNX models on disk: one file, or a model file and a second file with its weights.

An ONNX file is one protobuf message of at most 2 GiB. Larger models are written with external data:
each weight unchanged, at a multiple of 4,096 bytes so that runtimes can map it; the message states
file, offset and length. Weights are written one by one, never all of them in one message.

Two files cannot be replaced in one step, so the data file is named after its digest. While it is
written, the previous model and its data stay; then the model file is replaced, in one step, by one
that names the new data; then the previous data is deleted. So a model file never names incomplete
data or that of another model. (Two processes must not write one path at the same time.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import load_external_data_for_tensor

from qtool.backends.onnx.checker import function_expansion_error
from qtool.backends.onnx.graph import numpy_type
from qtool.backends.onnx.initializers import (
    check_weight_files,
    expand_sparse,
    reading,
    with_initializers,
)
from qtool.backends.onnx.loops import endless_loop
from qtool.backends.onnx.nested_graphs import sort_nodes
from qtool.core.atomic import atomic_path
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import FileError
from qtool.core.file_forms import is_tflite
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.paths import is_special_file

LIMIT = 2**31 - 1
"""Bytes of one protobuf message."""
PAGE = 4096
"""Bytes: each weight begins at a multiple of them."""
SMALL = 1024
"""Bytes up to which a tensor stays in the model: sizes, scales, operands of shape arithmetic."""
DIGITS = 16
"""Hexadecimal digits of a data file's name."""
_HALF_BYTES = (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1)

Places = Mapping[str, tuple[int, int]]
"""Tensor -> offset and length in the data."""


def load(path: str | Path) -> onnx.ModelProto:
    """Load a model with its weights, its nodes in topological order.

    Raises:
        FileError: not an ONNX file, or its external data is missing.
    """
    _check_ordinary(path)
    with reading(path, DOWNLOAD):
        model = onnx.load(path)
        expand_sparse(model)
        sort_nodes(model.graph)
    return model


def load_outline(path: str | Path) -> onnx.ModelProto:
    """Load a model without external weights, its nodes in topological order.

    Small tensors are loaded, since shapes may be computed from them.

    Raises:
        FileError: not an ONNX file, or its external data is missing.
    """
    _check_ordinary(path)
    if is_tflite(path):
        raise FileError(
            f"{path} is a TFLite file, and this takes ONNX files; `qtool inspect` shows what it is"
        )
    with reading(path, DOWNLOAD):
        model = onnx.load(path, load_external_data=False)
        _check_text(model)
        check_weight_files(model, Path(path).parent)
        expand_sparse(model)
        sort_nodes(model.graph)
        for tensor in model.graph.initializer:
            external = tensor.data_location == TensorProto.EXTERNAL
            if external and tensor_bytes(tensor) <= SMALL:
                load_external_data_for_tensor(tensor, str(Path(path).parent))
                tensor.data_location = TensorProto.DEFAULT
                del tensor.external_data[:]
    for reason in (function_expansion_error(model), endless_loop(model.graph)):
        if reason is not None:
            raise FileError(f"{path}: {reason}")
    return model


def _check_ordinary(path: str | Path) -> None:
    if is_special_file(path):
        raise FileError(f"{path}: not a readable ONNX file (not a regular file)")
    check_download(path, FileError)


def _check_text(model: onnx.ModelProto) -> None:
    """Raise TypeError unless names are text: protobuf returns damaged text as bytes."""
    graph = model.graph
    named = (graph, *graph.initializer, *graph.input, *graph.output, *graph.value_info, *graph.node)
    words = [each.name for each in named]
    words += [model.producer_name, model.producer_version, model.domain, model.doc_string]
    words += [graph.doc_string, *(each.domain for each in model.opset_import)]
    for node in graph.node:
        words += [node.op_type, node.domain, *node.input, *node.output]
        words += [each.name for each in node.attribute]
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"a name is not text: {word!r}")


def save(model: onnx.ModelProto, path: str | Path, external: bool = False) -> None:
    """Write a model into a folder that no other process uses; see `atomic_save` for others.

    Args:
        model: the model.
        path: the file to write.
        external: write weights to `<path>.data` even if one message could hold them.

    Raises:
        FileError: the file cannot be written.
    """
    path = Path(path)
    places = _places(model, external)
    data = path.with_name(f"{path.name}.data")
    try:
        if places:
            _write_weights(model, places, data)
        _write_message(model, places, path, data.name)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def atomic_save(model: onnx.ModelProto, path: str | Path, external: bool = False) -> Iterator[Path]:
    """Write a model to a temporary path, and move it to `path` when the block ends.

    On a failure the previous file stays, and no temporary file is left.

    Args:
        model: the model.
        path: the file to write.
        external: write weights to `<path>.<digest>.data` even if one message could hold them.

    Raises:
        FileError: the file cannot be written.
    """
    with atomic_path(path, MODEL_SUFFIXES) as temporary:
        path = Path(path).resolve()  # weights lie next to the file, not next to a link to it
        places, before = _places(model, external), _data_of(path)
        data = data_file(path, _digest(model, places))
        try:
            if places and not _has_weights(model, places, data):
                with atomic_path(data) as part:
                    _write_weights(model, places, part)
            _write_message(model, places, temporary, data.name)
            del model  # the caller may need the memory
            yield temporary
        except BaseException as error:
            if data not in before:
                data.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise FileError(f"cannot write {path}: {error.strerror or error}") from error
            raise
    _remove_data(before - ({data} if places else set()))


def move_into_place(model: Path, path: str | Path) -> None:
    """Move a model to `path`, with the data file that `write_weights` wrote for a model there.

    If it is interrupted, calling it again completes the move.

    Args:
        model: the model, on the file system of `path`.
        path: the model file.

    Raises:
        FileError: the files cannot be moved.
    """
    data = model_files(model)[1:]
    with atomic_path(path, MODEL_SUFFIXES) as temporary:
        path = Path(path).resolve()
        before, final = _data_of(path), {path.with_name(file.name) for file in data}
        temporary.write_bytes(model.read_bytes())
        for file in data:
            if file.exists():
                file.replace(path.with_name(file.name))
    _remove_data(before - final)


def data_file(path: Path, digest: str) -> Path:
    """Return the data file of a model whose weights have this digest."""
    return path.with_name(f"{path.name}.{digest}.data")


def model_files(path: str | Path) -> list[Path]:
    """Return the model file and those with its weights.

    Raises:
        FileError: not an ONNX file.
    """
    path = Path(path)
    with reading(path):
        stored = onnx.load(path, load_external_data=False).graph.initializer
    names = (e.value for t in stored for e in t.external_data if e.key == "location")
    return [path, *(path.parent / name for name in dict.fromkeys(names))]


def outline(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its weights as inputs, enough for checks and shape inference.

    Small tensors stay, since shapes may be computed from them. Nothing large is copied.
    """
    small = [t for t in model.graph.initializer if tensor_bytes(t) <= SMALL]
    bare = with_initializers(model, small)
    known = {t.name for t in small} | {i.name for i in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in known:
            kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            bare.graph.input.append(onnx.ValueInfoProto(name=tensor.name, type=kind))
    return bare


def fits_one_message(model: onnx.ModelProto) -> bool:
    """Return whether one message can hold the model with its weights."""
    stored = model.graph.initializer
    weights = sum(tensor_bytes(t) + len(t.name) + SMALL for t in stored)
    return int(with_initializers(model, ()).ByteSize()) + weights <= LIMIT


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of the data of a tensor; 0 for text."""
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return 0
    if tensor.data_type in _HALF_BYTES:
        return int(-(-prod(tensor.dims) // 2))
    return int(prod(tensor.dims) * numpy_type(tensor.data_type).itemsize)


def _places(model: onnx.ModelProto, external: bool) -> Places:
    """Return the places of the weights in external data; empty if all stay in the model."""
    if not external and fits_one_message(model):
        return {}
    places, end = {}, 0
    for tensor in model.graph.initializer:
        length = tensor_bytes(tensor)
        if length > SMALL and tensor.HasField("raw_data"):
            places[tensor.name] = (end, length)
            end += -(-length // PAGE) * PAGE
    return places


def _write_weights(model: onnx.ModelProto, places: Places, path: Path) -> None:
    with path.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.name in places:
                file.seek(places[tensor.name][0])
                file.write(tensor.raw_data)


def _has_weights(model: onnx.ModelProto, places: Places, path: Path) -> bool:
    """Return whether a data file has these weights: it may be in use, which Windows does not
    replace."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        for tensor in model.graph.initializer:
            if tensor.name in places:
                offset, length = places[tensor.name]
                file.seek(offset)
                if file.read(length) != tensor.raw_data:
                    return False
    return True


def _remove_data(files: Iterable[Path]) -> None:
    """Remove data files; one that a runtime has open on Windows stays until the next export."""
    for file in files:
        with suppress(PermissionError):
            file.unlink(missing_ok=True)


def _write_message(model: onnx.ModelProto, places: Places, path: Path, data: str) -> None:
    if not places:
        path.write_bytes(model.SerializeToString())
        return
    path.write_bytes(_referring(model, data, places).SerializeToString())


def _referring(model: onnx.ModelProto, data: str, places: Places) -> onnx.ModelProto:
    """Return the model with references to the weights in a data file."""
    stored = [
        _reference(t, data, places[t.name]) if t.name in places else t
        for t in model.graph.initializer
    ]
    return with_initializers(model, stored)


def _reference(tensor: onnx.TensorProto, data: str, place: tuple[int, int]) -> onnx.TensorProto:
    reference = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    reference.data_location = TensorProto.EXTERNAL
    for key, value in (("location", data), ("offset", place[0]), ("length", place[1])):
        reference.external_data.add(key=key, value=str(value))
    return reference


def _digest(model: onnx.ModelProto, places: Places) -> str:
    """Return a digest of the external weights and their places."""
    digest = hashlib.sha256(repr(dict(places)).encode())
    for tensor in model.graph.initializer:
        if tensor.name in places:
            digest.update(tensor.raw_data)
    return digest.hexdigest()[:DIGITS]


def _data_of(path: Path) -> set[Path]:
    """Return the data files that `atomic_save` wrote for a path."""
    name = re.compile(rf"{re.escape(path.name)}\.[0-9a-f]{{{DIGITS}}}\.data")
    return {file for file in path.parent.iterdir() if name.fullmatch(file.name)}
