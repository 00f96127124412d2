"""Inputs of a model file that became constants, in data that still gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from qtool.core.data.batch import Batch
from qtool.core.errors import DataError
from qtool.core.remedies import Argument, DataEdit
from qtool.core.user_code import attribute

FIXED_INPUTS = "qtool_fixed_inputs"
"""Attribute of a module, and key in the meta of a graph's first input."""


def carried(model: object, key: str) -> Any:
    """Return an attribute of a module, or what the first input of a captured graph has for it; None
    without."""
    if isinstance(model, fx.GraphModule):
        first = next(iter(model.graph.find_nodes(op="placeholder")), None)
        return None if first is None else first.meta.get(key)
    return attribute(model, key)


@dataclass(frozen=True)
class FixedInputs:
    """Inputs that became constants.

    Attributes:
        values: name -> tensor.
        order: names of all inputs of the file, these included.
    """

    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module | None) -> FixedInputs:
        """Return the fixed inputs of a loaded file or of a graph captured from one."""
        fixed: FixedInputs | None = carried(model, FIXED_INPUTS)
        return fixed or cls()

    def remove(self, batch: Batch, index: int) -> Batch:
        """Return a batch without them, and without labels behind the inputs.

        Raises:
            DataError: it gives another value for one.
        """
        named = {k: v for k, v in batch.kwargs.items() if k in self.values}
        args = batch.args
        if len(args) == len(self.order) and all(
            self._is_like(name, value) for name, value in zip(self.order, args, strict=True)
        ):
            pairs = list(zip(self.order, args, strict=True))
            named |= {name: value for name, value in pairs if name in self.values}
            args = tuple(value for name, value in pairs if name not in self.values)
        for name, value in named.items():
            if not bool((torch.as_tensor(value) == self.values[name]).all()):
                constant = self.values[name].flatten().tolist()
                shown = constant[0] if len(constant) == 1 else constant
                raise DataError(
                    f"batch {index}: input '{name}' is {value!s:.60}, and the model has it fixed "
                    f"to {shown}",
                    DataEdit("leave it out of the data"),
                    Argument("--fix", text="use {} with the value of the data"),
                )
        kwargs = {k: v for k, v in batch.kwargs.items() if k not in named}
        return Batch(args[: len(self.order) - len(self.values)], kwargs)

    def _is_like(self, name: str, value: Any) -> bool:
        """Return whether a value may be of this input; labels in its place have more elements."""
        constant = self.values.get(name)
        return constant is None or torch.as_tensor(value).numel() == constant.numel()


NO_FIXED_INPUTS = FixedInputs()
