"""What a reader of an ONNX operator is given: the node's attributes, and what is constant.

A value is a tensor, or a numpy array where it is known without data: a constant, or sizes (of dtype
object, since a dynamic size is a symbol). Sizes are calculated in numpy, so that torch.export sees
the sizes themselves and no tensors made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class UnsupportedForm(Exception):  # noqa: N818  # not an error: the node is kept as it is
    """A form of an operator that a reader has no torch operators for."""


@dataclass(frozen=True, eq=False)
class NodeCall:
    """One node: attributes, number of outputs, the file's opset, constant inputs by position."""

    name: str
    attributes: Mapping[str, Any]
    outputs: int
    opset: int
    constants: Mapping[int, Array] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def require(self, name: str, *accepted: Any) -> None:
        """Refuses values of an attribute other than these; the first is the default.

        Raises:
            Unreadable: it has another one.
        """
        if (value := self.get(name, accepted[0])) not in accepted:
            raise self.unsupported(f"{name} = {value}")

    def unsupported(self, why: str) -> UnsupportedForm:
        return UnsupportedForm(f"{self.name}: {why}")


def axes_of(call: NodeCall, axes: Array | None) -> list[int] | None:
    """Axes come as an input in newer opsets, as an attribute in older ones."""
    return call.get("axes") if axes is None else [int(a) for a in axes.ravel()]
