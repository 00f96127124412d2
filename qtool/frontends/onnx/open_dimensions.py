"""The dimensions of a file's tensors that are open: their size is known at run time only.

Exporters write them without a size, as `dim_value` -1 or 0 (Paddle2ONNX, Keras), or with a name of
their own making ("?", "p2o.DynamicDimension.1", "unk__6"), which says nothing to a reader. Inside a
Loop or an If they may state another rank than a result has (Paddle2ONNX).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx

from qtool.backends.onnx.nested_graphs import all_graphs, inner_graphs, nested_nodes
from qtool.backends.onnx.storage import outline

_NO_NAME = re.compile(
    r"[^A-Za-z]*|none|nan|unk(nown)?_*\d*|(p2o\.)?DynamicDimension\.\d+", re.IGNORECASE
)
"""Names that an exporter made, or none at all."""


def clear_unnamed(model: onnx.ModelProto) -> None:
    """Clear sizes below 1 and the names that exporters made from all types of a file."""
    for kind in _types(model.graph):
        for dim in kind.tensor_type.shape.dim:
            fixed = dim.HasField("dim_value")
            if dim.dim_value < 1 if fixed else _NO_NAME.fullmatch(dim.dim_param):
                dim.Clear()


def clear_wrong_ranks(model: onnx.ModelProto) -> None:
    """Clear the shapes of results inside control flow if one contradicts its node: ONNX Runtime
    runs such files, and the checker refuses them."""
    _, *inner = all_graphs(model.graph)
    try:
        if inner:
            onnx.shape_inference.infer_shapes(outline(model), strict_mode=True)
    except onnx.shape_inference.InferenceError:
        for info in (i for graph in inner for i in (*graph.output, *graph.value_info)):
            info.type.tensor_type.ClearField("shape")


def _types(graph: onnx.GraphProto) -> Iterator[onnx.TypeProto]:
    bodies = (body for node in nested_nodes(graph.node) for body in inner_graphs(node))
    for each in (graph, *bodies):
        yield from (i.type for i in (*each.input, *each.output, *each.value_info))


def open_dimensions(kind: onnx.TypeProto.Tensor) -> dict[int, str]:
    """Return axis -> name of the open dimensions of an input: "batch" and "dim1" where the file has
    no name.

    Args:
        kind: type of the tensor.
    """
    return {
        axis: d.dim_param or ("batch" if axis == 0 else f"dim{axis}")
        for axis, d in enumerate(kind.shape.dim)
        if not d.HasField("dim_value")
    }


def separate_names(
    dynamic: Mapping[str, Mapping[int, str]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, str]]:
    """Return open dimensions in which dimensions of different sizes have different names.

    Args:
        dynamic: input -> {axis: name}.
        shapes: input -> sizes in the example.
    """
    sizes: dict[str, int] = {}
    names: dict[str, dict[int, str]] = {}
    for source, dims in dynamic.items():
        names[source] = {}
        for axis, name in dims.items():
            size = next(iter(shapes[source][axis:]), 0)  # the example may have another rank
            same = sizes.setdefault(name, size) == size
            names[source][axis] = name if same else f"{source}_dim{axis}"
    return names
