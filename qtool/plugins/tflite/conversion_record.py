"""What a TFLite file of qtool says of its conversion, so that its model can be restored.

It has the description of the plan (`FileInfo`), and where the parameters and the codes of each
quantization point are: a tensor of the file, whose axes lie in another order than in the graph.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.backends.onnx.file_info import FileInfo
from qtool.core import value_names
from qtool.core.errors import MALFORMED, VerificationError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.plugins.tflite.file import Model

METADATA = "qtool"
"""Name of the metadata of files of qtool: JSON."""
DESCRIPTION = "qtool"
"""Description of files of qtool."""
LAYOUT = "layout"
"""Key there: the order of the axes of inputs and outputs."""
SOURCE = "onnx_metadata"
"""Name of the metadata of the source file: JSON."""
ENTRY = "qtool_conversion"
"""Name of the metadata: JSON, compressed."""
_MAX_BYTES = 2**28


@dataclass(frozen=True)
class StoredPoint:
    """Where a quantization point is in a file.

    Attributes:
        tensor: index of the tensor that has its parameters.
        axis: axis of the channels in the graph; None for one scale.
        order: layout of a constant: axis of the graph that each axis of the tensor holds; of a
            kernel for signals those of an image of height 1.
        shape: shape of a constant in the graph.
        columns: order of a constant's columns: the column of the graph that each column of the
            tensor holds; empty: the same.
        scale, zero_point: parameters that no tensor has; `tensor` is -1.
    """

    tensor: int
    axis: int | None = None
    order: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the attributes that differ from their defaults."""
        return {k: v for k, v in vars(self).items() if v != () and v is not None}

    def codes(self, data: Array) -> Array:
        """Return the codes of a constant as the graph has them."""
        ordered = [self.spread[i] for i in self.order]
        values = np.array(data).reshape(ordered).transpose(np.argsort(self.order).tolist())
        if self.columns:
            values = values[:, np.argsort(self.columns)]
        return np.ascontiguousarray(values.reshape(self.shape))

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape, with a height of 1 for a kernel for signals."""
        if len(self.shape) + 1 == len(self.order):
            return (*self.shape[:2], 1, *self.shape[2:])
        return self.shape


def read_metadata(model: Model) -> Mapping[str, Any]:
    """Return what qtool wrote into a file; empty for files of other tools."""
    try:
        values = json.loads(model.metadata.get(METADATA, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def record(
    info: Mapping[str, str], points: Mapping[str, StoredPoint], layers: Mapping[int, str]
) -> bytes:
    """Return the metadata of a file.

    Args:
        info: `FileInfo.metadata`.
        points: name of a dequantize of the graph -> where its point is.
        layers: index of a tensor with another name than its layer -> the layer.
    """
    rows = {name: point.to_json() for name, point in points.items()}
    values = {"info": info, "points": rows, "layers": list(layers.items())}
    text = json.dumps(values, separators=(",", ":"))
    return zlib.compress(text.encode(), 9)


@dataclass(frozen=True)
class ConversionRecord:
    """The record of a file.

    Attributes:
        info: description of the plan.
        points: name of a dequantize of the graph -> where its point is.
        layers: index of a tensor with another name than its layer -> the layer.
        model: the file.
    """

    info: FileInfo
    points: Mapping[str, StoredPoint]
    layers: Mapping[int, str]
    model: Model

    @classmethod
    def of(cls, model: Model) -> ConversionRecord | None:
        """Read the record of a file, None if it has none.

        Raises:
            VerificationError: it is damaged.
        """
        data = model.metadata.get(ENTRY)
        if data is None:
            return None
        try:
            text = zlib.decompressobj().decompress(data, _MAX_BYTES)
            values = json.loads(text)
            info = FileInfo.read(values["info"])
            points = {str(k): _point(v, model) for k, v in values["points"].items()}
            tensors = range(len(model.tensors))
            layers = {tensors[int(k)]: str(v) for k, v in values["layers"]}
        except (zlib.error, *MALFORMED) as error:
            raise VerificationError(
                f"the metadata that qtool wrote into the file is damaged ({error!r})",
                OtherFile("convert again"),
            ) from error
        return None if info is None else cls(info, points, layers, model)

    def parameters(self, point: str, root: str) -> tuple[Array, Array]:
        """Return scale (float32) and zero point (int64) of a point, or of the one it follows.

        Raises:
            VerificationError: the file has none.
        """
        place = self._place(point) or self._place(root)
        if place is None:
            raise VerificationError(f"the file holds no parameters of '{point}'")
        scale, zero = self._values(place)
        if place.axis is None:
            scale, zero = scale[:1].reshape(()), zero[:1].reshape(())
        return scale, zero

    def codes(self, point: str) -> Array | None:
        """Return the codes of a constant; None where the file has them in another form."""
        place = self._place(point)
        if place is None or place.tensor < 0:
            return None
        data = self.model.tensors[place.tensor].data
        return None if data is None else place.codes(data)

    def split(self, outputs: Mapping[str, int]) -> ConversionRecord:  # noqa: ARG002  # a protocol
        """Return the record itself: no file computes several layers as one."""
        return self

    def _place(self, point: str) -> StoredPoint | None:
        return self.points.get(value_names.dequantize(point))

    def _values(self, place: StoredPoint) -> tuple[Array, Array]:
        if place.tensor < 0:
            return np.array(place.scale, np.float32), np.array(place.zero_point, np.int64)
        stored = self.model.tensors[place.tensor].quantization
        if stored is None:
            raise VerificationError(
                "a tensor of the file has lost its parameters", OtherFile("convert again")
            )
        return stored.scale.astype(np.float32), stored.zero_point.astype(np.int64)


def _point(values: Mapping[str, Any], model: Model) -> StoredPoint:
    """Return a point from its JSON, checked against the tensors of the file."""
    lists: dict[str, tuple[Any, ...]] = {
        name: tuple(map(kind, _sequence(values.get(name, ()))))
        for name, kind in (
            *(("order", int), ("shape", int), ("columns", int)),
            *(("scale", float), ("zero_point", int)),
        )
    }
    axis = values.get("axis")
    point = StoredPoint(int(values["tensor"]), None if axis is None else int(axis), **lists)
    if not -1 <= point.tensor < len(model.tensors):
        raise ValueError(f"there is no tensor {point.tensor}")
    data = None if point.tensor < 0 else model.tensors[point.tensor].data
    if data is not None and (
        sorted(point.order) != list(range(len(point.spread)))
        or int(np.prod(point.shape)) != data.size
        or (point.columns and sorted(point.columns) != list(range(point.shape[-1])))
    ):
        raise ValueError(f"tensor {point.tensor} has another shape")
    return point


def _sequence(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list is no list")
    return value
