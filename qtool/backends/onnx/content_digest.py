"""Digest of what an ONNX file computes: its graph and its weights.

It ignores metadata, producer and documentation strings, and whether weights are in the file or in a
second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import TensorProto

from qtool.backends.onnx.storage import with_initializers
from qtool.core.errors import FileError

_ABOUT = (
    "metadata_props",
    "producer_name",
    "producer_version",
    "doc_string",
    "model_version",
    "domain",
)
_CHUNK = 1 << 24  # bytes read at once
_DIGITS = 32


def content_digest(path: str | Path) -> str:
    """Return the SHA-256 of graph and weights, 32 hexadecimal digits.

    The digest is of the deterministic protobuf serialization of the model without `_ABOUT` and
    without initializers, then of each initializer's name, type, shape and bytes.

    Raises:
        FileError: not an ONNX file, or its external data cannot be read.
    """
    path = Path(path)
    try:
        model = onnx.load(path, load_external_data=False)
        digest = hashlib.sha256(_without_weights(model))
        for tensor in model.graph.initializer:
            digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
            for chunk in _bytes_of(tensor, path.parent):
                digest.update(chunk)
    except Exception as error:
        raise FileError(f"{path}: not a readable ONNX file ({error})") from error
    return digest.hexdigest()[:_DIGITS]


def _without_weights(model: onnx.ModelProto) -> bytes:
    bare = with_initializers(model, ())
    for field in _ABOUT:
        bare.ClearField(field)
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
