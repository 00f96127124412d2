"""Multiply-accumulates of ONNX graphs, with the bodies of If, Loop and Scan.

A branch of an If counts as the one with the most work; a body counts as often as it runs. What
depends on values that are not known has no count: a loop that ends by its condition alone, a body
whose state grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool.backends.onnx.mac_counts import onnx_macs
from qtool.backends.onnx.nested_graphs import inner_graphs, read_names
from qtool.backends.onnx.result_types import Types, constant_results, inferred_types, runtime_types
from qtool.core.mac_formulas import Sizes
from qtool.core.types import Array

Constants = Mapping[str, Array]
_SMALL = 1024  # elements: sizes and numbers of runs are small


def model_macs(
    model: onnx.ModelProto, inputs: Sequence[tuple[int, Sizes]], values: Sequence[Array | None]
) -> int | None:
    """Return the MACs of a model; None if they are not known.

    Args:
        model: its subgraphs included.
        inputs: (ONNX element type, sizes) of each input.
        values: value of each input; None where it is not known.
    """
    names = [i.name for i in model.graph.input]
    types = {
        name: helper.make_tensor_type_proto(kind, tuple(sizes))
        for name, (kind, sizes) in zip(names, inputs, strict=True)
    }
    known = {n: v for n, v in zip(names, values, strict=True) if v is not None}
    return GraphMacs(model.graph, model.opset_import, types, known).total()


class GraphMacs:
    """The MACs of the nodes of one graph.

    Args:
        graph: the graph.
        opsets: operator sets of its model.
        types: types of tensors that it reads from outside, its inputs included.
        constants: values of tensors from outside.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        opsets: Iterable[onnx.OperatorSetIdProto],
        types: Types,
        constants: Constants,
    ) -> None:
        self._graph, self._opsets = graph, list(opsets)
        self._constants = {**constants, **_small_constants(graph)}
        stored = {
            t.name: helper.make_tensor_type_proto(t.data_type, list(t.dims))
            for t in graph.initializer
        }
        self.types: dict[str, onnx.TypeProto] = {**types, **stored}
        self.types.update(self._inferred())
        self._repetitions: dict[str, _Repetition] = {}
        for node in graph.node:  # behind operators for which onnx infers nothing
            self._follow(node)

    def total(self) -> int | None:
        return _sum(map(self.of, self._graph.node))

    def of(self, node: onnx.NodeProto) -> int | None:
        """Return the MACs of a node; None if they are not known."""
        bodies = list(inner_graphs(node))
        if not bodies:
            inputs = [self.sizes(name) for name in node.input]
            result = self.sizes(node.output[0]) if node.output else None
            named = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in named.items()}
            return onnx_macs(node.op_type, inputs, result, texts, node.domain)
        if node.op_type == "If":
            branches = [self._body(b, {}).total() for b in bodies]
            return None if None in branches else max(b for b in branches if b is not None)
        return self._repetition(node).macs

    def sizes(self, name: str) -> Sizes | None:
        """Return the sizes of a tensor; None if one of them is not known."""
        return _sizes(self.types.get(name))

    def _follow(self, node: onnx.NodeProto) -> None:
        """Add what types and values of the inputs say of the results of a node."""
        self.types.update(runtime_types(node, self.types))
        opset = next((o.version for o in self._opsets if o.domain in ("", "ai.onnx")), 0)
        if node.op_type in ("Loop", "Scan"):
            repetition = self._repetition(node)
            results = zip(node.output, repetition.states, strict=False)
            self.types.update((n, kind) for n, kind in results if n and kind is not None)
        if node.domain not in ("", "ai.onnx") or any(inner_graphs(node)):
            return
        first = self.sizes(node.input[0]) if node.input else None
        self._constants.update(constant_results(node, self._constants, first, opset, _SMALL))
        if any(o and self.sizes(o) is None for o in node.output[:1]):
            self.types.update(inferred_types(node, self.types, self._constants, opset))

    def _body(self, graph: onnx.GraphProto, own: Types) -> GraphMacs:
        return GraphMacs(graph, self._opsets, {**self.types, **own}, self._constants)

    def _repetition(self, node: onnx.NodeProto) -> _Repetition:
        """Return what a Loop or a Scan repeats."""
        key = next(filter(None, node.output), "")
        if key not in self._repetitions:
            graph = next(inner_graphs(node))
            runs, types = self._runs(node)
            body, states = self._body(graph, types), []
            for before, after in _carried(node, graph):
                same = body.sizes(after) in (None, _sizes(types.get(before)))
                states.append(types.get(before) if same else None)
            self._repetitions[key] = _Repetition(runs, body.total(), tuple(states))
        return self._repetitions[key]

    def _runs(self, node: onnx.NodeProto) -> tuple[int | None, Types]:
        """Return how often the body runs, at most, and the types of the body's inputs."""
        body = next(inner_graphs(node))
        names = [i.name for i in body.input]
        if node.op_type == "Loop":
            count = self._constants.get(node.input[0]) if node.input[0] else None
            number = helper.make_tensor_type_proto(onnx.TensorProto.INT64, ())
            condition = helper.make_tensor_type_proto(onnx.TensorProto.BOOL, ())
            runs = None if count is None else max(0, int(count.reshape(-1)[0]))
            carried = [self.types.get(name) for name in node.input[2:]]
            return runs, _named(names, (number, condition, *carried))
        scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
        state, data = node.input[: len(node.input) - scanned], node.input[-scanned:]
        axes = next((a.ints for a in node.attribute if a.name == "scan_input_axes"), None)
        sizes = [self.sizes(name) for name in data]
        places = list(axes or [0] * scanned)
        slices = [_slice(self.types.get(n), axis) for n, axis in zip(data, places, strict=True)]
        runs = None if not sizes or sizes[0] is None else int(sizes[0][places[0]])
        return runs, _named(names, (*(self.types.get(n) for n in state), *slices))

    def _inferred(self) -> dict[str, onnx.TypeProto]:
        """Return the types that onnx infers; none where it cannot."""
        graph = onnx.GraphProto()
        graph.node.extend(self._graph.node)
        graph.name = "g"
        made = {o for n in graph.node for o in n.output} | {t.name for t in self._graph.initializer}
        read = dict.fromkeys(n for node in graph.node for n in read_names(node) if n not in made)
        for name in read:
            if name in self.types:
                graph.input.append(helper.make_value_info(name, self.types[name]))
        for name, array in self._constants.items():
            if name in read or name in made:
                graph.initializer.append(numpy_helper.from_array(array, name))
        small = {t.name for t in graph.initializer}
        for tensor in self._graph.initializer:
            if tensor.name not in small:
                graph.input.append(helper.make_value_info(tensor.name, self.types[tensor.name]))
        for output in self._graph.output:
            if output.name in made:
                graph.output.append(onnx.ValueInfoProto(name=output.name))
        model = helper.make_model(graph, opset_imports=self._opsets)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        except Exception:  # noqa: BLE001  # custom operators, contradictory sizes
            return {}
        values = (*inferred.value_info, *inferred.output)
        return {v.name: v.type for v in values if v.type.WhichOneof("value")}


@dataclass(frozen=True)
class _Repetition:
    """A body that runs several times.

    Attributes:
        runs: how often, at most; None: not known.
        once: MACs of a run; None: not known.
        states: the type of each state; None if its sizes change, or are not known.
    """

    runs: int | None
    once: int | None
    states: tuple[onnx.TypeProto | None, ...]

    @property
    def macs(self) -> int | None:
        """MACs of all runs; None if they are not known."""
        if self.once == 0 or self.runs == 0:
            return 0
        known = self.once is not None and self.runs is not None and None not in self.states
        return self.once * self.runs if known else None  # type: ignore[operator]  # both are known


def _carried(node: onnx.NodeProto, body: onnx.GraphProto) -> list[tuple[str, str]]:
    """Return (input, output) of the body for each state."""
    skip = (2, 1) if node.op_type == "Loop" else (0, 0)  # number of the run, and condition
    scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    inputs = [i.name for i in body.input][skip[0] : len(body.input) - scanned]
    return list(zip(inputs, [o.name for o in body.output][skip[1] :], strict=False))


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(c for c in known if c is not None)


def _sizes(kind: onnx.TypeProto | None) -> Sizes | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    known = all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
    return tuple(d.dim_value for d in dims) if known else None


def _slice(kind: onnx.TypeProto | None, axis: int) -> onnx.TypeProto | None:
    """Return the type of what a Scan gives to its body in one run."""
    sizes = _sizes(kind)
    if kind is None or sizes is None:
        return None
    rest = [s for i, s in enumerate(sizes) if i != axis % len(sizes)]
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, rest)


def _named(names: Sequence[str], types: Iterable[onnx.TypeProto | None]) -> Types:
    return {n: t for n, t in zip(names, types, strict=False) if t is not None}


def _small_constants(graph: onnx.GraphProto) -> Constants:
    """Return the small constants of a graph, stored or made by a node."""
    tensors = {t.name: t for t in graph.initializer}
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            tensors[node.output[0]] = value
    return {
        name: np.asarray(numpy_helper.to_array(tensor))
        for name, tensor in tensors.items()
        if int(np.prod(tensor.dims)) <= _SMALL and not tensor.external_data
    }
