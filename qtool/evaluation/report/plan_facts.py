"""The plan in a report: inputs of operators that join several, operators in float, nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EdgeFact:
    """One input of an operator that joins several: concat, add, mul, matmul of two activations.

    Attributes:
        source: the tensor that is read.
        how: "copied" or "same scale" (parameters of the result), "requantized" (in the kernel of a
            concat; "to uint16" before an operator of another type), "rescaled in the kernel",
            "float".
        shared_with: other tensors with the same parameters.
        input_scale, output_scale: scales; None if per channel or in float.
        lost_bits: resolution lost by sharing: log2 of the scale over the scale of its own range.
    """

    node: str
    op: str
    source: str
    how: str
    shared_with: tuple[str, ...]
    input_scale: float | None
    output_scale: float | None
    lost_bits: float | None


@dataclass(frozen=True)
class FloatOperator:
    """An operator that the runtime computes in float; `name` is that of the user's model."""

    model: str
    name: str
    op: str
    kernel: str
    macs: int
    reason: str


@dataclass(frozen=True)
class PlanRow:
    """One node of the plan.

    Attributes:
        form: how it is executed.
        output: type of its result.
        reason: why.
        inputs: nodes of the plan and inputs of the model whose values it reads.
        macs: multiply-accumulates for one sample.
    """

    node: str
    op: str
    form: str
    output: str
    reason: str
    inputs: tuple[str, ...] = ()
    macs: int = 0
