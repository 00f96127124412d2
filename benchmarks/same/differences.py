"""What differs between the files that two versions wrote."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtool.plugins.tflite.file import load

__all__ = ["differences", "folder_differences", "leaves"]

SHOWN = 3
"""Names in a list."""


def folder_differences(before: Path, after: Path) -> str:
    """What differs between all files below two folders; empty if nothing does.

    Files with the weights of a model are read with the model: their names contain a digest.
    """
    names = [
        {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
        for folder in (before, after)
    ]
    names = [{n for n in each if not n.endswith(".data")} for each in names]
    missing = [f"only one has {n}" for n in sorted(names[0] ^ names[1])]
    compared = {n: differences(before / n, after / n) for n in sorted(names[0] & names[1])}
    return ", ".join(missing + [f"{n}: {text}" for n, text in compared.items() if text])


def differences(before: Path, after: Path) -> str:
    """What differs between two files of one kind; empty if nothing does."""
    if before.suffix == ".onnx":
        return ", ".join(_onnx_differences(onnx.load(before), onnx.load(after)))
    if before.read_bytes() == after.read_bytes():
        return ""
    if before.suffix == ".tflite":
        return ", ".join(_tflite_differences(load(before), load(after))) or "order of the bytes"
    return "bytes"


def _onnx_differences(one: onnx.ModelProto, two: onnx.ModelProto) -> Iterator[str]:
    notes = [_metadata({p.key: p.value for p in m.metadata_props}) for m in (one, two)]
    weights = [{t.name: t for t in m.graph.initializer} for m in (one, two)]
    yield from _names_that_differ(
        {n: numpy_helper.to_array(t) for n, t in weights[0].items()},
        {n: numpy_helper.to_array(t) for n, t in weights[1].items()},
    )
    for model in (one, two):
        del model.metadata_props[:]
        del model.graph.initializer[:]
        model.producer_version = ""
    if one.SerializeToString(deterministic=True) != two.SerializeToString(deterministic=True):
        nodes = [
            [n.SerializeToString(deterministic=True) for n in m.graph.node] for m in (one, two)
        ]
        pairs = zip(one.graph.node, *nodes, strict=False)
        first = next((n.name for n, a, b in pairs if a != b), None)
        yield f"graph, from node {first}" if first else "graph"
    if list(weights[0]) != list(weights[1]) and set(weights[0]) == set(weights[1]):
        yield "order of the weights"
    yield from _keys_that_differ(*notes)


def _tflite_differences(one: Any, two: Any) -> Iterator[str]:
    names = [[t.name for t in m.tensors] for m in (one, two)]
    if names[0] != names[1] or _plain(one.operators) != _plain(two.operators):
        yield "graph"
    tensors = [{t.name: t for t in m.tensors} for m in (one, two)]
    data = [{n: t.data for n, t in each.items() if t.data is not None} for each in tensors]
    yield from _names_that_differ(*data)
    kept = [
        {n: _plain(dataclasses.replace(t, data=None)) for n, t in each.items()} for each in tensors
    ]
    both = [n for n in kept[0] if n in kept[1] and kept[0][n] != kept[1][n]]
    if both:
        yield f"types or scales of {_listed(both)}"
    fields = ("inputs", "outputs", "description", "names", "subgraphs")
    yield from (f for f in fields if getattr(one, f) != getattr(two, f))
    texts = [{k: v.decode("latin-1") for k, v in m.metadata.items()} for m in (one, two)]
    yield from _keys_that_differ(*map(_metadata, texts))


def _names_that_differ(
    one: Mapping[str, np.ndarray[Any, Any]], two: Mapping[str, np.ndarray[Any, Any]]
) -> Iterator[str]:
    """Weights (floats) and codes (integers) that differ, or that one side alone has."""
    names = {"weights": list[str](), "codes": list[str]()}
    for name in dict.fromkeys((*one, *two)):
        if _plain(one.get(name)) != _plain(two.get(name)):
            value = one.get(name, two.get(name))
            is_real = value is not None and value.dtype.kind == "f"
            names["weights" if is_real else "codes"].append(name)
    yield from (f"{kind} {_listed(each)}" for kind, each in names.items() if each)


def _keys_that_differ(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"metadata {k}" for k in sorted({*one, *two}) if one.get(k) != two.get(k))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return " ".join(names[:SHOWN]) + more


def _plain(value: Any) -> Any:
    """A value that == compares by content."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return tuple(_plain(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


# ------------------------------------------------------------------------- metadata and plans


def _metadata(texts: Mapping[str, str]) -> dict[str, Any]:
    return {key: _normal(_parsed(text)) for key, text in texts.items()}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _normal(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_normal(v) for v in value]
    if isinstance(value, str) and " " in value:
        return "a sentence"
    return value


def leaves(value: Any) -> Iterator[Any]:
    """Numbers, names and types of a plan in order. Names of fields and sentences are left out."""
    if dataclasses.is_dataclass(value):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = [item for key in sorted(value, key=str) for item in (str(key), value[key])]
    elif isinstance(value, (set, frozenset)):
        value = sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif not (isinstance(value, str) and " " in value):
        yield _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value) if isinstance(value.value, int) else type(value.value).__name__
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if type(value).__name__ == "dtype":  # of torch before 0.2, by its name since
        return str(value).removeprefix("torch.")
    return type(value).__name__
