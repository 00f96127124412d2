"""Folds nodes of an ONNX file that depend on constants only.

An If with a constant condition becomes the nodes of one branch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qtool.backends.onnx.loops import DeadlineError, run_within
from qtool.backends.onnx.nested_graphs import read_names, with_names
from qtool.backends.onnx.subgraph import unoptimized_session
from qtool.core.errors import CaptureError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.core.value_names import unique
from qtool.frontends.onnx.external_weights import MappedArray
from qtool.frontends.onnx.runtime_parts import FileContext, make_part
from qtool.frontends.onnx.value_names import label_of

_GROWS = frozenset({"ConstantOfShape", "Expand", "Tile", "Range", "Resize", "Pad", "OneHot"})
_LARGE = 2**20  # largest number of elements that a growing operator may fold to
_MESSAGE = 2**31 - 2**24  # bytes of constants in one protobuf message; nodes need the rest
_COMPUTED, _COPIES = 2**28, 8
"""What a file may compute of constants: bytes, and next to them as often what it stores."""


def fold_constants(
    graph: onnx.GraphProto, known: dict[str, Array], source: FileContext
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that depend on data; add the results of all others to `known`.

    Raises:
        CaptureError: a node reads more constants than one protobuf message can have, or the file
            computes far more of them than it stores.
    """
    queue = deque(graph.node)
    left = _COMPUTED + _COPIES * sum(map(_own_bytes, known.values()))
    taken = {i.name for i in (*graph.initializer, *graph.input)}
    taken.update(o for n in graph.node for o in n.output)
    while queue:
        proto = queue.popleft()
        if proto.op_type == "If" and proto.input[0] in known and operator_key(proto) == "If":
            queue.extendleft(reversed(_branch(proto, bool(known[proto.input[0]]), known, taken)))
        elif (values := _constant_results(proto, known, source)) is not None:
            known.update(values)
            left -= sum(map(_own_bytes, values.values()))
            if left < 0:
                raise _too_large(proto, "makes the constants that the file computes too many")
        else:
            yield proto


def _own_bytes(array: Array) -> int:
    return 0 if isinstance(array, MappedArray) else array.nbytes


def _too_large(proto: onnx.NodeProto, problem: str) -> CaptureError:
    return CaptureError(
        f"{label_of(proto)} ({proto.op_type}) {problem}",
        OtherFile("check that the file is what you expect"),
    )


def to_array(tensor: onnx.TensorProto) -> Array:
    """Return a stored tensor as an array.

    Raises:
        CaptureError: its data does not have the stated size.
    """
    try:
        return numpy_helper.to_array(tensor)
    except ValueError as error:
        raise CaptureError(
            f"the data of '{tensor.name}' does not have the stated size {list(tensor.dims)}"
        ) from error


def operator_key(node: onnx.NodeProto) -> str:
    """Return the operator, with its domain if that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _branch(
    proto: onnx.NodeProto, condition: bool, known: dict[str, Array], taken: set[str]
) -> list[onnx.NodeProto]:
    """Return the nodes of one branch of an If, with results under the names of the If.

    Args:
        proto: the If.
        condition: selects the branch.
        known: gets the constants of the branch.
        taken: names of values, which another branch may have, too; gets those of the branch.
    """
    name = "then_branch" if condition else "else_branch"
    graph = next(a.g for a in proto.attribute if a.name == name)
    own = [*(i.name for i in graph.initializer), *(o for n in graph.node for o in n.output if o)]
    graph = with_names(
        graph, {n: unique(f"{label_of(proto)}.{n}", taken) for n in own if n in taken}
    )
    taken.update(i.name for i in graph.initializer)
    taken.update(o for n in graph.node for o in n.output)
    known.update({i.name: numpy_helper.to_array(i) for i in graph.initializer})
    ends = [
        helper.make_node("Identity", [inner.name], [outer], f"{proto.name}.{outer}")
        for inner, outer in zip(graph.output, proto.output, strict=True)
        if outer
    ]
    return [*graph.node, *ends]


def _constant_results(
    proto: onnx.NodeProto, known: Mapping[str, Array], source: FileContext
) -> dict[str, Array] | None:
    """Return the results of a node that reads only constants, by name; None if it has to run."""
    if operator_key(proto) == "Constant":
        value = helper.get_attribute_value(proto.attribute[0])
        if isinstance(value, onnx.TensorProto):
            return {proto.output[0]: numpy_helper.to_array(value)}
        kinds = {"value_float": np.float32, "value_floats": np.float32}
        if proto.attribute[0].name.startswith(("value_float", "value_int")):
            kind = kinds.get(proto.attribute[0].name, np.int64)
            return {proto.output[0]: np.asarray(value, kind)}
        return None
    names = read_names(proto)
    if not names or any(n not in known for n in names):
        return None
    constants = {n: known[n] for n in names}
    if any(isinstance(a, MappedArray) for a in constants.values()):
        return _view_of_mapped(proto, constants)
    if proto.op_type in _GROWS and _largest_result(constants) > _LARGE:
        return None
    _refuse_huge(proto, constants)
    outputs = [o for o in proto.output if o]
    part = make_part([proto], outputs, [], constants, source, label_of(proto))
    try:
        session = unoptimized_session(part.model)
        values: Any = run_within(session, {}, part.model.graph)
    except DeadlineError:
        raise
    except Exception:  # noqa: BLE001  # ONNX Runtime raises various types
        try:  # the runtime has no kernel for every type
            values = ReferenceEvaluator(part.model).run(None, {})
        except Exception:  # noqa: BLE001  # any numpy error: the node is not folded
            return None
    if not all(isinstance(v, np.ndarray | np.generic) for v in values):
        return None
    return dict(zip(outputs, map(np.asarray, values), strict=True))


def _refuse_huge(proto: onnx.NodeProto, constants: Mapping[str, Array]) -> None:
    """Refuse constants that grow without bound: each node of a chain can double them."""
    size = sum(constants[n].nbytes for n in proto.input if n in constants)
    if size > _MESSAGE:
        raise _too_large(
            proto,
            f"reads {size:,} bytes of constants that the file computes; the limit is {_MESSAGE:,}",
        )


def _view_of_mapped(
    proto: onnx.NodeProto, constants: Mapping[str, Array]
) -> dict[str, Array] | None:
    """Return the result of a node on a mapped array as a view; None if it has to read it."""
    if operator_key(proto) not in ("Transpose", "Identity"):
        return None
    (array,) = constants.values()
    if proto.op_type == "Transpose":
        orders = [list(a.ints) for a in proto.attribute if a.name == "perm"]
        array = array.transpose(*orders)
    return {proto.output[0]: array}


def _largest_result(constants: Mapping[str, Array]) -> float:
    """Return an upper bound of the number of elements: the product of all possible sizes."""
    sizes = [
        abs(float(v)) for a in constants.values() if a.dtype.kind in "if" for v in a.ravel()[:16]
    ]
    whole = [max(1.0, s) for s in sizes if np.isfinite(s)]
    return float(np.prod(whole)) if whole else 0.0
