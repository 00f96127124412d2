"""The names of tensors and nodes in files of qtool; only this module knows their grammar.

A layer or tensor of the user's model has its name in the model: `layer1.0.conv2`. The names of
tensors that quantization adds are derived from it: the weight point `conv2.weight` has the codes
`conv2.weight.codes` and the parameters `conv2.weight.scale` and `conv2.weight.zero_point`; the
nodes around a tensor `conv2` are `conv2.quantize` and `conv2.dequantize`. Of an operator written as
several nodes the last has its name; the others are `layer/Op:output`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from keyword import iskeyword

MASK = "attention_mask"
"""The input that is 1 for tokens and 0 for padding, as in transformers: [samples, tokens]."""

NODE_NAME = "qtool_name"
"""The key of a graph node's readable name in its meta."""

_QUANTIZE, _DEQUANTIZE, _CODES = ".quantize", ".dequantize", ".codes"
_FOREIGN = ("_QuantizeLinear", "_DequantizeLinear", "_quant")  # as ONNX Runtime's own tool names


def codes(point: str) -> str:
    """The stored integers of a weight, bias or constant."""
    return f"{point}{_CODES}"


def scale(point: str) -> str:
    return f"{point}.scale"


def zero_point(point: str) -> str:
    return f"{point}.zero_point"


def quantize(tensor: str) -> str:
    """The QuantizeLinear of a tensor, and its output."""
    return f"{tensor}{_QUANTIZE}"


def dequantize(point: str) -> str:
    """The DequantizeLinear of a point, and its output."""
    return f"{point}{_DEQUANTIZE}"


def quant_point(point: str) -> str:
    """The call of a quant point in a prepared torch graph."""
    return f"{point}.quant"


def rounded_input(layer: str) -> str:
    """A layer's input in a torch graph, as the kernel of the layer rounds it."""
    return f"{layer}.rounded_input"


_JOINT = "+"


def joint_layer(layers: Sequence[str]) -> str:
    """A layer that computes several layers at once: a.q_proj+k_proj of a.q_proj and a.k_proj."""
    scope = layers[0].rpartition(".")[0]
    return _JOINT.join((layers[0], *(name.removeprefix(f"{scope}.") for name in layers[1:])))


def points_of_joint(point: str, known: Container[str]) -> list[str]:
    """The weight points of the layers in a joint layer, from the point of the joint layer.

    Args:
        point: its name, such as a.q_proj+k_proj.weight.
        known: weight points of single layers.

    Returns:
        Known points in the order of `joint_layer`; empty if the point is of no joint layer.
    """
    joint, _, part = point.rpartition(".")
    first, *others = joint.split(_JOINT)
    scope = first.rpartition(".")[0]
    names = [f"{first}.{part}"]
    for other in others:
        inside = f"{scope}.{other}.{part}"
        names.append(inside if inside in known else f"{other}.{part}")
    return names if others and all(name in known for name in names) else []


def layers_of_joint(joint: str, known: Container[str]) -> list[str]:
    """The layers that a joint layer computes; empty if it is none of known layers."""
    points = points_of_joint(f"{joint}.", _Points(known))
    return [point[:-1] for point in points]


@dataclass(frozen=True)
class _Points:
    """Names of layers, each with a point behind it."""

    layers: Container[str]

    def __contains__(self, point: object) -> bool:
        return isinstance(point, str) and point[:-1] in self.layers


def point_of_codes(name: str) -> str | None:
    """The point whose codes have a name: the inverse of `codes`; None for another name."""
    point = name.removesuffix(_CODES)
    return None if point == name else point


def helper(operator: str, op_type: str, output: str) -> str:
    """A node of an operator written as several, except the last; and its output."""
    return f"{operator}/{op_type}:{output}"


def operator_of(node: str, op_type: str) -> str:
    """The operator of a node: the inverse of `helper`."""
    return node.partition(f"/{op_type}:")[0]


def tensor_of(name: str) -> str:
    """The name in the user's model, from that of the tensor or of its codes."""
    return name.removesuffix(_QUANTIZE)


def base_of(name: str) -> str | None:
    """The tensor of a Q or DQ node of qtool or of ONNX Runtime's tool; None for other nodes."""
    for suffix in (_QUANTIZE, _DEQUANTIZE, *_FOREIGN):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None


def unique(wanted: str, taken: Container[str]) -> str:
    """Return `wanted`, or the first free name of `wanted_2`, `wanted_3` ..."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def all_unique(wanted: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Return each name made unique; names that occur once stay as they are."""
    names = list(wanted)
    result: list[str] = []
    used = {*taken}
    single = {n for n in names if names.count(n) == 1} - used
    for name in names:
        new = name if name in single else unique(name, used | single)
        used.add(new)
        result.append(new)
    return tuple(result)


def free_name(module: object, wanted: str) -> str:
    """Return an attribute name made from `wanted` that the module does not have."""
    base = "".join(c if c.isalnum() else "_" for c in wanted) or "t"
    base = base if base[0].isalpha() and not iskeyword(base) else "t_" + base
    name, k = base, 1
    while hasattr(module, name):
        name, k = f"{base}_{k}", k + 1
    return name
