"""Reads the encodings of AIMET, versions 0.4 to 0.6, 1.0 and 2.x.

Of version 2 a scale has the terms of QuantizeLinear; before, real = (code + offset) * scale with
codes from 0. The names are those of the ONNX file that AIMET exports next to the encodings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.affine import Affine
from qtool.core.errors import MALFORMED, CalibrationError, FileError
from qtool.core.remedies import OtherFile
from qtool.core.types import INT8, INT16, INT32, UINT8, UINT16
from qtool.plugins.scales.record import FileScales, TensorScale

_UNSIGNED = {8: UINT8, 16: UINT16}
_QTYPES = {t.name: t for t in (UINT8, INT8, UINT16, INT16, INT32)}
_ACTIVATIONS, _WEIGHTS = "activation_encodings", "param_encodings"
Entry = tuple[Any, bool, Any]  # tensor, whether it is known as a parameter, its encoding


class _EncodingError(Exception):
    """Why an encoding cannot be taken."""


def read_encodings(path: str) -> FileScales:
    """Return the scales of a file of encodings.

    Raises:
        FileError: the file cannot be read.
        CalibrationError: it holds no encodings, or is damaged.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read ({error})") from error
    again = OtherFile("export the encodings again")
    try:
        document = json.loads(text)
        version = str(document.get("version", "0.4.0"))
        entries, parse = _VERSIONS[version.partition(".")[0]]
        return _scales(path, entries(document), parse)
    except json.JSONDecodeError as error:
        raise CalibrationError(f"{path}: damaged or truncated JSON ({error})", again) from error
    except MALFORMED as error:
        raise CalibrationError(
            f"{path}: no encodings of AIMET of a version from 0.4 to 2 ({error!r})", again
        ) from error


def _scales(path: str, entries: Iterator[Entry], parse: Callable[[Any], Affine]) -> FileScales:
    scales: list[TensorScale] = []
    refused: dict[str, str] = {}
    for name, is_weight, encoding in entries:
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} is no text")
        try:
            params = parse(encoding)
        except _EncodingError as why:
            refused[name] = str(why)
            continue
        if params.qtype is not INT32:  # biases follow from inputs and weights
            scales.append(TensorScale((name,), params, is_weight or params.axis is not None))
    return FileScales(path, "AIMET", tuple(scales), refused)


def _by_name(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of versions 0.4 to 0.6: lists, with an entry for each channel."""
    for section in (_ACTIVATIONS, _WEIGHTS):
        for name, channels in document[section].items():
            yield name, section == _WEIGHTS, channels


def _channels(channels: Any) -> Affine:
    first = channels[0]
    _check_integer(first.get("dtype", "int"))
    if not {"scale", "offset"} <= first.keys():
        raise _EncodingError("it has no scale")
    scale, offset = ([c[key] for c in channels] for key in ("scale", "offset"))
    return _from_offset(first["bitwidth"], scale, offset)


def _in_sections(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of version 1: two lists."""
    for section in (_ACTIVATIONS, _WEIGHTS):
        for encoding in document[section]:
            yield encoding["name"], section == _WEIGHTS, encoding


def _encoding_1(encoding: Any) -> Affine:
    _check_integer(encoding["dtype"])
    if encoding["enc_type"] not in ("PER_TENSOR", "PER_CHANNEL"):
        raise _EncodingError("a scale for each block of weights")
    return _from_offset(encoding["bw"], encoding["scale"], encoding["offset"])


def _in_one_list(document: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the encodings of version 2: one list of activations and parameters."""
    for encoding in document["encodings"]:
        yield encoding["name"], False, encoding


def _encoding_2(encoding: Any) -> Affine:
    _check_integer(encoding["output_dtype"])
    qtype = _QTYPES.get(encoding["output_dtype"])
    if qtype is None:
        raise _EncodingError(f"codes of type {encoding['output_dtype']}")
    if "y_scale" not in encoding or encoding.get("block_size") or np.ndim(encoding["y_scale"]) > 1:
        raise _EncodingError("a scale for each block of weights")
    scale = np.asarray(encoding["y_scale"], np.float32)
    zero = encoding.get("y_zero_point")
    zeros = np.zeros(scale.shape) if zero is None else np.asarray(zero)
    axis = int(encoding.get("axis", 0)) if scale.ndim else None
    return _checked(Affine(qtype, scale, zeros.astype(np.int64).reshape(scale.shape), axis))


def _check_integer(dtype: str) -> None:
    if "int" not in dtype.lower():
        raise _EncodingError("it is a float")


def _from_offset(bits: int, scale: Any, offset: Any) -> Affine:
    """Return the parameters of versions before 2; the channels are those of the weight's layer."""
    if bits == INT32.bits:
        return Affine(INT32, np.ones((), np.float32), np.zeros((), np.int64))
    if bits not in _UNSIGNED:
        raise _EncodingError(f"codes of {bits} bits")
    one = len(scale) == 1
    shape = () if one else (-1,)
    scales = np.asarray(scale, np.float32).reshape(shape)
    zeros = -np.asarray(offset).astype(np.int64).reshape(shape)
    return _checked(Affine(_UNSIGNED[bits], scales, np.asarray(zeros), None if one else -1))


def _checked(params: Affine) -> Affine:
    if params.scale.shape != params.zero_point.shape or not (
        np.isfinite(params.scale).all() and (params.scale > 0).all()
    ):
        raise ValueError("a scale is no positive number")
    return params


_VERSIONS: Mapping[str, tuple[Callable[[Any], Iterator[Entry]], Callable[[Any], Affine]]] = {
    "0": (_by_name, _channels),
    "1": (_in_sections, _encoding_1),
    "2": (_in_one_list, _encoding_2),
}
