"""A random ONNX graph as data: what is drawn, kept as a regression, and built into a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
}
IDS = 4  # integers of inputs are below


@dataclass(frozen=True)
class Constant:
    """Values, or random ones of a shape (`values` None); `low` is the least of those."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...] | None = None
    seed: int = 0
    low: float | None = None

    def array(self) -> np.ndarray[Any, Any]:
        kind = DTYPES[self.dtype]
        if self.values is not None:
            return np.array(self.values, kind).reshape(self.shape)
        drawn = np.random.default_rng(self.seed).normal(size=self.shape)
        if kind not in (np.float32, np.float64, np.float16):
            return (np.abs(drawn * 2) % IDS).astype(kind)
        found = drawn if self.low is None else np.abs(drawn) + self.low
        return np.asarray(found, kind)


@dataclass(frozen=True)
class Node:
    """One node. An attribute {"constant": ...} is a tensor, {"nodes": ...} a graph without inputs
    of its own, but for those in "inputs"."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""


@dataclass(frozen=True)
class Graph:
    """A file, and the data for it.

    inputs: (name, dtype, shape with "N" for the batch where it is open).
    sizes: of values of the file, where the file states them: none, as a rule.
    """

    opset: int
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant]
    outputs: tuple[str, ...]
    seed: int = 0
    batch: int = 16
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Graph:
        nodes = tuple(
            Node(**{**n, "inputs": tuple(n["inputs"]), "outputs": tuple(n["outputs"])})
            for n in data["nodes"]
        )
        constants = {
            k: Constant(**{**c, "shape": tuple(c["shape"]), "values": _values(c["values"])})
            for k, c in data["constants"].items()
        }
        inputs = tuple((n, kind, tuple(shape)) for n, kind, shape in data["inputs"])
        rest = {"nodes": nodes, "constants": constants, "inputs": inputs}
        return Graph(**{**data, **rest, "outputs": tuple(data["outputs"])})

    def model(self) -> onnx.ModelProto:
        used = {i for n in self.nodes for i in reads(n)} | set(self.outputs)
        infos = [helper.make_tensor_value_info(n, _kind(d), list(s)) for n, d, s in self.inputs]
        graph = helper.make_graph(
            [_node(n) for n in self.nodes],
            "fuzzed",
            infos,
            [onnx.ValueInfoProto(name=o) for o in self.outputs],
            [numpy_helper.from_array(c.array(), n) for n, c in self.constants.items() if n in used],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if any(n.domain for n in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def data(self, count: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs by name, of `count` samples where the batch is open."""
        drawn = np.random.default_rng(1000 * self.seed + seed)
        found = {}
        for name, dtype, shape in self.inputs:
            sizes = [count if s == "N" else int(s) for s in shape]
            values = drawn.normal(size=sizes)
            if dtype.startswith("float"):
                found[name] = np.asarray(values, DTYPES[dtype])
            else:
                found[name] = np.asarray(np.abs(values * 2) % IDS, DTYPES[dtype])
        return found


def _values(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _kind(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype]))


def reads(node: Node) -> list[str]:
    inner = [
        i
        for a in node.attributes.values()
        if isinstance(a, Mapping) and "nodes" in a
        for n in a["nodes"]
        for i in n["inputs"]
    ]
    return [*node.inputs, *inner]


def _node(node: Node) -> onnx.NodeProto:
    attributes = {k: _attribute(k, v) for k, v in node.attributes.items()}
    return helper.make_node(
        node.op,
        list(node.inputs),
        list(node.outputs),
        node.name or None,
        domain=node.domain or None,
        **attributes,
    )


def _attribute(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return list(value) if isinstance(value, tuple) else value
    if "constant" in value:
        array = np.array(value["constant"], DTYPES[value["dtype"]])
        return numpy_helper.from_array(array)
    inner = [
        Node(**{**n, "inputs": tuple(n["inputs"]), "outputs": tuple(n["outputs"])})
        for n in value["nodes"]
    ]
    infos = [
        helper.make_tensor_value_info(n, kind, None if shape is None else list(shape))
        for n, kind, shape in value.get("inputs", ())
    ]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in value["outputs"]]
    return helper.make_graph([_node(n) for n in inner], name, infos, outputs)
