"""What a network says of its outputs: what reads them, which layer they come from, and whether
values of the input decide how many rows they have, or in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

BY_VALUES = -1
"""`rows` of an output whose number of rows depends on values."""

_VIEWS = """
    alias cast clone contiguous copy dequantize dequantizelinear detach expand flatten identity
    interpolate permute quantize quantizelinear reshape resize resizebilinear resizenearestneighbor
    slice squeeze t to tocopy transpose unsqueeze upsamplebicubic2d upsamplebilinear2d
    upsamplenearest2d view
"""
_POINTWISE = """
    add biasadd clamp clip hardsigmoid log logistic logsoftmax mul relu sigmoid softmax sub tanh
"""
_SELECT = """
    compress maskedselect nms nonmaxsuppression nonmaxsuppressionv4 nonmaxsuppressionv5 nonzero
    unique unique2 uniqueconsecutive uniquedim
"""
VIEWS, SELECT = frozenset(_VIEWS.split()), frozenset(_SELECT.split())
"""Operators behind which an output is what it was before; whose number of rows values decide."""
IN_LAYER = VIEWS | frozenset(_POINTWISE.split())
"""Operators behind which an output still comes from the same layer."""
_FIXED = frozenset(
    "arange constantofshape ones range shape size symsize symsizeint zeros".split()  # noqa: SIM905
)
"""Operators whose results do not depend on the values of what they read: sizes, and positions up to
a size, which mask values that have as many."""
_SIZED = frozenset({"expand", "pad", "repeat", "reshape", "slice", "tile", "view"})
"""Operators that read sizes behind the values."""
_WRITES = ("scatter", "indexput", "maskedscatter", "maskedfill")
"""Operators whose results have the rows of their first input."""
_RECURRENT = ("lstm", "gru", "rnn")
_MEANS = frozenset({"mean", "reducemean"})


class Operator(NamedTuple):
    """An operator of a file or of a graph.

    Attributes:
        kind: its type, as "Softmax" or "log_softmax.int".
        name: its name, and those of its weights.
        inputs: names of the tensors that it reads, "" for an omitted one.
        outputs: names of the tensors that it computes.
        selected: how many values TopK selects; 0 of others and where it is not known.
    """

    kind: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    selected: int = 0


class Evidence(NamedTuple):
    """What is known of an output besides its values.

    Attributes:
        layer: names of the layer that it comes from and of its weights.
        ending: kind of the operator that computes it, "sigmoid" for instance.
        uses: kinds of the operators that read it, "argmax" for instance.
        is_state: whether it is the state of a recurrent layer.
        rows: BY_VALUES, or how many rows were selected by TopK; 0 of others.
        classes: number of names of classes in the metadata of the file; 0 without.
        labels: number of classes that the user's labels show; 0 without whole numbers as labels.
        reads_images: whether the model has an input [samples, 3, height, width], in any layout.
        kind: what the user calls it; "" where he does not.
    """

    layer: str = ""
    ending: str = ""
    uses: frozenset[str] = frozenset()
    is_state: bool = False
    rows: int = 0
    classes: int = 0
    labels: int = 0
    reads_images: bool = False
    kind: str = ""

    @property
    def is_state_alone(self) -> bool:
        """Whether it is a state that the user does not call anything else."""
        return self.is_state and not self.kind


def reads_images(shapes: Iterable[Sequence[object]]) -> bool:
    """Return whether an input has one of these shapes: four sizes, one of them three channels."""
    return any(len(shape) == 4 and 3 in (shape[1], shape[3]) for shape in shapes)


def kind_name(kind: str) -> str:
    """Return the type of an operator in small letters, without namespace, overload and marks; of
    a part of several, joined by "+", the one that decides on rows, else the last."""
    plain = kind.rpartition("::")[2].partition(".")[0].replace("_", "").lower()
    parts = plain.split("+")
    return next((each for each in parts if each in SELECT), parts[-1])


def output_evidence(
    operators: Iterable[Operator],
    inputs: Iterable[str],
    outputs: Sequence[str],
    common: Evidence,
) -> dict[str, Evidence]:
    """Return what is known of each output.

    Args:
        operators: operators in the order in which they run.
        inputs, outputs: names of tensors.
        common: what is known of all of them.
    """
    nodes = [each._replace(kind=kind_name(each.kind)) for each in operators]
    makers = {name: node for node in nodes for name in node.outputs}
    rows = row_selections(nodes, inputs)
    readers: dict[str, list[Operator]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return {
        name: common._replace(
            layer=_layer(name, makers),
            ending=_ending(name, makers),
            uses=frozenset(_uses(name, makers, readers)),
            is_state=_is_state(name, makers),
            rows=rows.get(name, 0),
        )
        for name in outputs
    }


def row_selections(nodes: Iterable[Operator], inputs: Iterable[str]) -> dict[str, int]:
    """Return the tensors whose rows values decide, see `Evidence.rows`.

    Args:
        nodes: operators in the order in which they run, their kinds as `kind_name` returns them.
        inputs: names of tensors.
    """
    data, rows = set(inputs), dict[str, int]()
    for node in nodes:
        if node.kind in _FIXED or not data.intersection(node.inputs):
            continue
        data.update(node.outputs)
        read = node.inputs[:1] if node.kind.startswith(_WRITES) else node.inputs
        known = {rows[name] for name in read if name in rows}
        values, *sizes = node.inputs
        sized = node.kind in _SIZED and values in data and not data.isdisjoint(sizes)
        if sized or node.kind in SELECT or BY_VALUES in known:
            own = BY_VALUES
        else:
            own = node.selected or max(known, default=0)
        if own:
            rows.update(dict.fromkeys(node.outputs, own))
    return rows


def _views(name: str, makers: Mapping[str, Operator]) -> Iterator[str]:
    """Yield a tensor and those that it is a view of."""
    yield name
    while (node := makers.get(name)) is not None and node.kind in VIEWS and node.inputs:
        name = node.inputs[0]
        yield name


def _uses(
    name: str, makers: Mapping[str, Operator], readers: Mapping[str, Sequence[Operator]]
) -> Iterator[str]:
    """Yield the kinds of the operators that read a tensor, or what it is a view of; what a softmax
    reads is read as its result is."""
    for each in _views(name, makers):
        waiting = [each]
        while waiting:
            for node in readers.get(waiting.pop(), ()):
                if node.kind in VIEWS:
                    waiting += node.outputs
                else:
                    yield node.kind


def _layer(name: str, makers: Mapping[str, Operator]) -> str:
    """Return the names of the layer that a tensor comes from."""
    while (node := makers.get(name)) is not None:
        if node.kind not in IN_LAYER:
            return node.name
        computed = [each for each in node.inputs if each in makers]
        name = computed[0] if computed else ""
    return ""


def _ending(name: str, makers: Mapping[str, Operator]) -> str:
    """Return the kind of operator that computes a tensor; a mean has that of what it reads."""
    *_, last = _views(name, makers)
    node = makers.get(last)
    if node is not None and node.kind in _MEANS and node.inputs:
        return _ending(node.inputs[0], makers)
    return "" if node is None else node.kind


def _is_state(name: str, makers: Mapping[str, Operator]) -> bool:
    *_, last = _views(name, makers)
    node = makers.get(last)
    return node is not None and node.kind.startswith(_RECURRENT) and last != node.outputs[0]
