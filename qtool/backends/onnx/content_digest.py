"""Digest of an ONNX file: graph, weights, metadata and the self-test but for its own digits.

Whether weights are in the file or in a second one makes no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto

from qtool.backends.onnx.initializers import reading, with_initializers

_CHUNK = 1 << 24  # bytes read at once
DIGITS = 32
_CONTENT = '"content":"'
"""What the digest follows in the JSON of a self-test."""


def content_digest(path: str | Path, self_test: onnx.StringStringEntryProto | None = None) -> str:
    """Return the SHA-256 of a file, 32 hexadecimal digits.

    It is of the deterministic protobuf serialization of the model without initializers, then of
    each initializer's name, type, shape and bytes. In the value of a metadata entry that begins as
    a self-test does, zeros take the place of the digest.

    Args:
        path: the file.
        self_test: an entry that it will have as its last one.

    Raises:
        FileError: not an ONNX file, or its external data cannot be read.
    """
    path = Path(path)
    with reading(path):
        model = onnx.load(path, load_external_data=False)
        digest = hashlib.sha256(_without_weights(model, self_test))
        for tensor in model.graph.initializer:
            digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
            for chunk in _bytes_of(tensor, path.parent):
                digest.update(chunk)
    return digest.hexdigest()[:DIGITS]


def blank(text: str) -> str:
    """Return the JSON of a self-test with zeros for its digest; other texts unchanged."""
    start = text.find(_CONTENT) + len(_CONTENT)
    if not text.startswith('{"format":') or start < len(_CONTENT):
        return text
    return f"{text[:start]}{'0' * DIGITS}{text[start + DIGITS :]}"


def _without_weights(
    model: onnx.ModelProto, self_test: onnx.StringStringEntryProto | None
) -> bytes:
    bare = with_initializers(model, ())
    if self_test is not None:
        bare.metadata_props.append(self_test)
    for entry in bare.metadata_props:
        entry.value = blank(entry.value)
    return bytes(bare.SerializeToString(deterministic=True))


def _bytes_of(tensor: onnx.TensorProto, folder: Path) -> Iterator[bytes]:
    """Yield the stored bytes of a tensor, little-endian, from the model or a second file."""
    if tensor.data_location == TensorProto.EXTERNAL:
        yield from _external(tensor, folder)
    elif tensor.HasField("raw_data"):
        yield tensor.raw_data
    else:  # numbers in a typed field
        yield tensor.SerializeToString(deterministic=True)


def _external(tensor: onnx.TensorProto, folder: Path) -> Iterator[bytes]:
    entries = {e.key: e.value for e in tensor.external_data}
    file = (folder / entries["location"]).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ValueError(f"its data '{entries['location']}' is outside of its folder")
    start = int(entries.get("offset", 0))
    left = int(entries["length"]) if "length" in entries else file.stat().st_size - start
    with file.open("rb") as data:
        data.seek(start)
        while left > 0 and (chunk := data.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
