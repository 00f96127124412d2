"""What a file of another tool says of the quantization of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qtool.core.affine import Affine
from qtool.core.types import Array


@dataclass(frozen=True, eq=False)
class TensorScale:
    """Scale and zero point of one tensor.

    Attributes:
        names: names that the tensor may have in the float file, the best first; those of a weight
            are its own or that of its layer.
        params: parameters of its codes.
        is_weight: whether it is known to be a weight.
        values: dequantized weights, float32; None where the file has none.
    """

    names: tuple[str, ...]
    params: Affine
    is_weight: bool = False
    values: Array | None = None


@dataclass(frozen=True, eq=False)
class FileScales:
    """The scales of a file.

    Attributes:
        path: path of the file, for messages.
        tool: tool that wrote it.
        scales: those that qtool can read, in the order of the file.
        refused: tensor -> why its scale cannot be taken.
    """

    path: str
    tool: str
    scales: tuple[TensorScale, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
