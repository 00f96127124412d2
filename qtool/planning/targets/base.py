"""What a target is: a runtime on a kind of hardware, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import fx

from qtool.core.schemes import Scheme, When
from qtool.core.types import INT4, INT8_NARROW, INT32, QType, QuantParams

INTEGER = (Scheme(), Scheme(weights=INT4))
"""What every kernel on int8 weights takes: 4-bit codes are bytes like others."""

STORED = tuple(Scheme(When.NEVER, weights=t) for t in (None, INT4))
"""Weights stored as such bytes, and dequantized by the runtime."""


def _no_objection(node: fx.Node) -> str | None:
    return None


def _none(node: fx.Node) -> fx.Node | None:
    return None


@dataclass(frozen=True)
class KernelRule:
    """How the target runs one operator in integers.

    schemes: what it can be given; the first that fits is taken. What they leave open is the
        target's: its types, a scale for each channel.
    refuse: why this call of the operator has to stay in float, or None.
    follows: takes part only where an input already comes in codes (an add behind a convolution);
        otherwise the operator is worth quantizing its inputs for.
    float_output: the kernel can also give its result in float, without an output quantization.
    one_output: the kernel gives codes or floats, not both: where one reader takes codes, all do.
    in_float: no integer kernel, but cheap enough to run in float between two integer kernels, so
        that its result is quantized again at once.
    stays_float: the operand that the kernel takes in float: an add that is fused into the layer
        which computes that operand.
    """

    refuse: Callable[[fx.Node], str | None] = _no_objection
    follows: bool = False
    float_output: bool = False
    one_output: bool = False
    in_float: bool = False
    stays_float: Callable[[fx.Node], fx.Node | None] = _none
    schemes: tuple[Scheme, ...] = INTEGER


@dataclass(frozen=True)
class Types:
    """The integer types that a target computes with where a recipe names none.

    bias: None where biases stay in float.
    symmetric: activations have zero point 0.
    """

    activation: QType
    weight: QType = INT8_NARROW
    bias: QType | None = INT32
    symmetric: bool = False


@dataclass(frozen=True)
class FileForm:
    """How a target's files are written.

    formats: the forms a file can have: "qdq", "qoperator".
    contrib: whether the file may hold operators of ONNX Runtime's own domain.
    on_codes: keys of pass-through operators that must be written on codes, between Q and DQ.
    fused_unasked: keys of operators that the runtime fuses whatever the plan says: into integers
        where they stand between DQ and Q, into float where a clamp follows. An idle operator is
        written behind them where that is not what the plan says.
    apart: what is written in another form, since the runtime gets it wrong beside quantization:
        "extremes" (largest and smallest values along axes), "pads" (of one axis).
    """

    opset: int = 18
    ir_version: int = 10
    formats: tuple[str, ...] = ("qdq",)
    contrib: bool = False
    on_codes: frozenset[str] = frozenset()
    fused_unasked: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """A runtime: its types, its integer kernels by operator key, the form of its files.

    no_kernel: operator key -> why it has none, where more can be said than "no integer kernel".
    weights_only: key -> why its weights alone are stored as codes, of operators without an integer
        kernel in the formats of this target.
    dynamic: keys of those that have a kernel which rounds its inputs in each run, taken where that
        is asked for.
    rewrites: names of the passes that bring a graph to the forms this target is quick with.
    fixed_outputs: operator key -> the parameters that its kernel gives its output, whatever the
        data; those of the type that the kernel computes with.
    same_parameters: keys of operators whose kernel averages or compares codes, so that its output
        has the parameters of its input.
    pair_limit: the largest sum, in absolute value, of two weights that meet in a pair with which
        no kernel saturates (see saturation.py); None where sums have 32 bits from the start.
    agreement: numerics profiles of other CPUs that the file runs on; scales are chosen so that
        operators whose formulas differ between them give the same codes (conversion/agreement.py).
    machines: profiles of the CPUs that a file is verified on; empty: on any.
    profile: the numerics profile whose codes the target gives; None where there is none.
    runtime: the name of the runtime (see qtool/runtimes) that verification asks on the developer's
        machine; None where it runs elsewhere, and the file is run as it is written.
    """

    name: str
    description: str
    types: Types
    kernels: Mapping[str, KernelRule]
    no_kernel: Mapping[str, str] = field(default_factory=dict)
    file: FileForm = FileForm()
    rewrites: tuple[str, ...] = ()
    weights_only: Mapping[str, str] = field(default_factory=dict)
    dynamic: frozenset[str] = frozenset()
    fixed_outputs: Mapping[str, tuple[QuantParams, ...]] = field(default_factory=dict)
    same_parameters: frozenset[str] = frozenset()
    pair_limit: int | None = None
    agreement: tuple[str, ...] = ()
    machines: frozenset[str] = frozenset()
    profile: str | None = None
    runtime: str | None = None

    def schemes(self, key: str) -> tuple[Scheme, ...]:
        """What the kernel of an operator takes, with everything said; nothing without a kernel."""
        rule = self.kernels.get(key)
        offered = rule.schemes if rule is not None else ()
        return tuple(s.or_else(self.types.activation, self.types.weight) for s in offered)
