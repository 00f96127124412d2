"""One operator of a model with all that a kernel of the engine needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qtool.backends.kernels.params import Kernel
from qtool.backends.profiles import Profile
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds
from qtool.plugins.tflite.file import Model, Operator, Tensor
from qtool.plugins.tflite.file.codes import affine_of
from qtool.plugins.tflite.file.model import ABSENT
from qtool.plugins.tflite.file.schema import ACTIVATIONS

_PAD_SAME = 0


@dataclass(frozen=True, eq=False)
class Call:
    """An operator.

    Attributes:
        model: model of the operator.
        operator: itself.
        profile: whose kernels are bound.
    """

    model: Model
    operator: Operator
    profile: Profile

    def tensor(self, position: int) -> Tensor | None:
        """Return an input, None if the operator is called without it."""
        inputs = self.operator.inputs
        if position >= len(inputs) or inputs[position] == ABSENT:
            return None
        return self.model.tensors[inputs[position]]

    def input(self, position: int = 0) -> Tensor:
        """Return an input that there must be."""
        tensor = self.tensor(position)
        if tensor is None:
            raise KernelError(f"{self.operator.name} is called without its input {position}")
        return tensor

    @property
    def output(self) -> Tensor:
        return self.model.tensors[self.operator.outputs[0]]

    def params(self, position: int = 0) -> QuantParams:
        return params_of(self.input(position))

    @property
    def out(self) -> QuantParams:
        return params_of(self.output)

    def option(self, name: str, default: Any = 0) -> Any:
        return self.operator.options.get(name, default)

    @property
    def bounds(self) -> Bounds:
        """The bounds of the fused activation."""
        number = self.option("fused_activation_function")
        if not 0 <= number < len(ACTIVATIONS):
            raise KernelError(
                f"{self.operator.name} fuses activation {number}, which has no integer kernel"
            )
        return ACTIVATIONS[number]

    def numbers(self, position: int) -> list[int]:
        """Return the values of a stored input of integers."""
        tensor = self.input(position)
        if tensor.data is None or tensor.data.dtype.kind not in "iu":
            raise KernelError(f"'{tensor.name}' is computed at run time")
        return [int(n) for n in tensor.data.ravel()]

    def bind(self, key: str, *args: Any, **kwargs: Any) -> Kernel:
        return self.profile.bind(key, *args, **kwargs)

    def stored(self, position: int) -> torch.Tensor:
        """Return the values of a stored input."""
        tensor = self.input(position)
        if tensor.data is None:
            raise KernelError(f"'{tensor.name}' is computed at run time")
        return torch.from_numpy(tensor.data.copy())

    @property
    def is_same(self) -> bool:
        """Return whether the padding is SAME."""
        return int(self.option("padding")) == _PAD_SAME


def params_of(tensor: Tensor, axis: int | None = None) -> QuantParams:
    """Return `affine_of` as tensors."""
    return QuantParams.of(affine_of(tensor, axis))
