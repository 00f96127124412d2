"""Arguments of the functions that compute ONNX operators: attributes and constants of the node.

A value is a tensor, or a numpy array if it is known without data: a constant, or sizes (of dtype
object, since a dynamic size is a symbol). Sizes are computed in numpy, so that torch.export sees
the sizes themselves, not tensors of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qtool.core.types import Array


class UnsupportedForm(Exception):  # noqa: N818  # not an error: ONNX Runtime runs the node
    """Raised for a form of an operator that has no torch form here."""


@dataclass(frozen=True, eq=False)
class NodeCall:
    """One node.

    Attributes:
        name: name of the node, for messages.
        attributes: name -> value.
        outputs: number of outputs.
        opset: operator set of the file.
        constants: position -> constant input.
    """

    name: str
    attributes: Mapping[str, Any]
    outputs: int
    opset: int
    constants: Mapping[int, Array] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute; bytes become a string."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def require(self, name: str, *accepted: Any) -> None:
        """Check that an attribute has one of these values; the first is the default.

        Raises:
            UnsupportedForm: it has another one.
        """
        if (value := self.get(name, accepted[0])) not in accepted:
            raise self.unsupported(f"{name} = {value}")

    def unsupported(self, why: str) -> UnsupportedForm:
        """Return the exception to raise for this node."""
        return UnsupportedForm(f"{self.name}: {why}")
