"""The tensors and operators of a model while it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qtool.core.quant_params import QuantParams
from qtool.core.types import Array
from qtool.plugins.tflite.file import Operator, Quantization, Tensor

_WITH_INT16: Mapping[str, int] = {
    **dict.fromkeys(("LEAKY_RELU", "QUANTIZE"), 2),
    **dict.fromkeys(("ADD", "AVERAGE_POOL_2D", "BATCH_MATMUL", "CONCATENATION", "DEQUANTIZE"), 3),
    **dict.fromkeys(("LOGISTIC", "MAX_POOL_2D", "MEAN", "MIRROR_PAD", "PACK", "PAD", "PADV2"), 3),
    **dict.fromkeys(("RELU", "RELU6", "SOFTMAX", "TANH"), 3),
    **dict.fromkeys(("CONV_2D", "GATHER", "MAXIMUM", "MINIMUM", "MUL", "SLICE"), 4),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), 4),
    **dict.fromkeys(("DEPTHWISE_CONV_2D", "SUB", "TRANSPOSE"), 5),
    "FULLY_CONNECTED": 7,
}
"""Operator -> its first version that takes int16 (tensorflow: lite/tools/versioning)."""


@dataclass
class GraphBuilder:
    """Tensors and operators so far; names of tensors are unique.

    Attributes:
        tensors: tensors of the model.
        operators: operators in the order in which they run.
    """

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)
    _constants: dict[tuple[str, str, tuple[int, ...], bytes], int] = field(default_factory=dict)

    def tensor(
        self,
        name: str,
        sizes: Sequence[int],
        dynamic: Sequence[bool],
        params: QuantParams | None = None,
        dtype: str = "float32",
    ) -> int:
        """Add a tensor that is computed.

        Args:
            name: made unique.
            sizes: its shape, as the file has it.
            dynamic: whether each size follows the batch.
            params: parameters of its codes; None for floats and other values.
            dtype: type of the elements without `params`.
        """
        kind = dtype if params is None else str(params.qtype.numpy_dtype)
        shape = tuple(map(int, sizes))
        signature = tuple(-1 if d else s for s, d in zip(shape, dynamic, strict=True))
        return self._add(
            Tensor(
                self._unique(name),
                kind,
                shape,
                signature if any(dynamic) else None,
                quantization=None if params is None else quantization(params),
            )
        )

    def constant(self, name: str, data: Array, quantized: Quantization | None = None) -> int:
        """Add a stored tensor; equal ones without parameters are stored once."""
        key = ("", str(data.dtype), data.shape, data.tobytes())
        if quantized is None and key in self._constants:
            return self._constants[key]
        index = self._add(
            Tensor(
                self._unique(name), str(data.dtype), data.shape, data=data, quantization=quantized
            )
        )
        if quantized is None:
            self._constants[key] = index
        return index

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Mapping[str, Any] | None = None,
        version: int = 1,
    ) -> None:
        if any(self.tensors[i].type == "int16" for i in (*inputs, *outputs) if i >= 0):
            version = max(version, _WITH_INT16.get(name, 1))
        self.operators.append(Operator(name, tuple(inputs), tuple(outputs), options or {}, version))

    def _add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if not count else self._unique(f"{name}.{count}")


def quantization(params: QuantParams, axis: int | None = None) -> Quantization:
    """Return parameters as the file has them.

    Args:
        params: per tensor or per channel.
        axis: axis of the channels in the file's layout; by default that of `params`.
    """
    scale = params.scale.detach().reshape(-1).numpy().astype(np.float32)
    zero = params.zero_point.detach().reshape(-1).numpy().astype(np.int64)
    return Quantization(scale, zero, (params.axis or 0) if axis is None else axis)
