"""Readable names for the nodes and values of a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

import onnx
from torch import nn

from qtool.core import graph as G
from qtool.core.value_names import unique

_MERGED = ";"
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"})


def label_of(node: onnx.NodeProto) -> str:
    """Return the module's name if the exporter stored it, else the node's name.

    torch.onnx stores it in metadata, its predecessor in the node's name:
    `/layer1/layer1.0/conv1/Conv` for layer1.0.conv1. A node that TensorFlow Lite merged out of
    several, `a/Relu;a/Relu;b/FusedBatchNorm`, has the name of the first.
    """
    notes = {p.key: p.value for p in node.metadata_props if p.key.startswith("pkg.torch.onnx")}
    scopes, kinds = (
        _parse_list(notes.get(f"pkg.torch.onnx.{key}", "[]"))
        for key in ("name_scopes", "class_hierarchy")
    )
    if len(scopes) > 1 and scopes[-2] and len(kinds) == len(scopes):
        leaf = str(kinds[-2]).startswith("torch.nn.modules.")
        return str(scopes[-2]) if leaf else f"{scopes[-2]}.{node.op_type.lower()}"
    path: list[str] = []
    output = next((o for o in node.output if o), node.op_type)
    first = (node.name or output).partition(_MERGED)[0]
    for part in first.split("/"):
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        elif part:
            path.append(part)
    if len(path) > 1 and re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", path[-1]):
        last = path.pop()  # a layer has its module's name; a module may have several ReLUs
        path += [] if node.op_type in _LAYERS else [last.lower()]
    return ".".join(path) or output


def _parse_list(text: str) -> list[Any]:
    """Parse a printed Python list; return [] for any other text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def identifiers(names: Iterable[str]) -> list[str]:
    """Return unique lowercase Python identifiers, as torch.export writes them."""
    result: list[str] = []
    for name in names:
        ascii_only = "".join(c if c.isascii() else "_" for c in name.lower())
        result.append(unique(G.free_name(nn.Module(), ascii_only), result))
    return result
