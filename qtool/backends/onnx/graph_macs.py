"""Multiply-accumulates of ONNX graphs, with the branches of If.

A branch of an If counts as the one with the most work. How often the body of a Loop or a Scan runs
is not known: one with products has no count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
        totals = [GraphMacs(b, self._opsets, self.types, self._constants).total() for b in bodies]
        if node.op_type == "If":
            return None if None in totals else max(total for total in totals if total is not None)
        return None if any(totals) or None in totals else 0

    def sizes(self, name: str) -> Sizes | None:
        """Return the sizes of a tensor; None if one of them is not known."""
        return _sizes(self.types.get(name))

    def _follow(self, node: onnx.NodeProto) -> None:
        """Add what types and values of the inputs say of the results of a node."""
        self.types.update(runtime_types(node, self.types))
        opset = next((o.version for o in self._opsets if o.domain in ("", "ai.onnx")), 0)
        if node.domain not in ("", "ai.onnx") or any(inner_graphs(node)):
            return
        first = self.sizes(node.input[0]) if node.input else None
        self._constants.update(constant_results(node, self._constants, first, opset, _SMALL))
        if any(o and self.sizes(o) is None for o in node.output[:1]):
            self.types.update(inferred_types(node, self.types, self._constants, opset))

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


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(c for c in known if c is not None)


def _sizes(kind: onnx.TypeProto | None) -> Sizes | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    known = all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
    return tuple(d.dim_value for d in dims) if known else None


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
