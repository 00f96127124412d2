"""A TFLite model as a value: tensors, operators, names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qtool.core.types import Array

TFLITE = "tflite"
"""The format of these files, as targets and options name it."""
ABSENT = -1
"""Index of an optional input that an operator does not have."""


@dataclass(frozen=True, eq=False)
class Quantization:
    """Quantization parameters of a tensor: real = (code - zero_point) * scale.

    Attributes:
        scale: float32, one per tensor or per channel.
        zero_point: int64, of the shape of `scale`.
        axis: axis of the channels.
    """

    scale: Array
    zero_point: Array
    axis: int = 0


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor.

    Attributes:
        name: as in the file.
        type: element type, by its name in numpy.
        shape: sizes; 1 where the size is dynamic.
        signature: sizes with -1 for dynamic ones; None: all are fixed.
        data: the values of a constant; None for others.
        quantization: its parameters, None for floats.
        variable: its values stay between runs.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    signature: tuple[int, ...] | None = None
    data: Array | None = None
    quantization: Quantization | None = None
    variable: bool = False


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator.

    Attributes:
        name: name of its type, as the schema has it: "CONV_2D"; of a custom operator its own.
        inputs: indices of tensors; `ABSENT` for an optional one.
        outputs: indices of tensors.
        options: options by the names of the schema; without those that have their default.
        version: version of the operator.
        custom: whether it is no operator of the schema.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    custom: bool = False


class PortNames(NamedTuple):
    """Names of the inputs and outputs in the signature of a model; of the tensors without one."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Model:
    """A model.

    Attributes:
        tensors: tensors of the main subgraph.
        operators: operators of the main subgraph, in the order in which they run.
        inputs: indices of tensors.
        outputs: indices of tensors.
        description: a text.
        metadata: name -> bytes.
        names: names of the inputs and outputs.
        subgraphs: number of subgraphs; more than one for control flow.
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    description: str = ""
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    names: PortNames = field(default_factory=PortNames)
    subgraphs: int = 1
