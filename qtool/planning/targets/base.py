"""The description of a target: a runtime on one kind of hardware, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import fx

from qtool.core.schemes import Scheme, When
from qtool.core.types import INT4, INT8_NARROW, INT32, Fixed, Observed, QType
from qtool.planning.speed.costs import CostTable

INTEGER_SCHEMES = (Scheme(), Scheme(weights=INT4))
"""Schemes of every kernel with int8 weights: 4-bit codes are stored as bytes, too."""

WEIGHT_ONLY_SCHEMES = tuple(Scheme(When.NEVER, weights=t) for t in (None, INT4))
"""Schemes whose weights are stored as bytes and dequantized by the runtime."""


def _accept(node: fx.Node) -> str | None:
    return None


def _no_operand(node: fx.Node) -> fx.Node | None:
    return None


def _computes_in_float(layer: fx.Node, weight: Observed) -> int | None:
    return None


@dataclass(frozen=True)
class KernelRule:
    """How a target runs one operator in integers.

    Attributes:
        refuse: takes a call of the operator and returns why it stays in float, or None.
        opportunistic: quantize the operator only where an input already comes in codes (an add
            behind a convolution). Otherwise its inputs are quantized for its sake.
        float_output: the kernel can return floats, without an output quantization.
        single_dtype_output: the kernel returns codes or floats, not both: if one reader takes
            codes, all readers do.
        float_between_qdq: there is no integer kernel, but the operator is cheap enough to run in
            float between two integer kernels; its result is quantized again at once.
        float_operand: returns the operand that the kernel takes in float: that of an add which is
            fused into the layer computing the operand.
        schemes: the supported schemes; the first that fits is taken. A type that a scheme leaves
            open is the target's, and weights have one scale per channel.
    """

    refuse: Callable[[fx.Node], str | None] = _accept
    opportunistic: bool = False
    float_output: bool = False
    single_dtype_output: bool = False
    float_between_qdq: bool = False
    float_operand: Callable[[fx.Node], fx.Node | None] = _no_operand
    schemes: tuple[Scheme, ...] = INTEGER_SCHEMES


@dataclass(frozen=True)
class Types:
    """The integer types that a target computes with where a recipe names none.

    Attributes:
        activation: type of activations.
        weight: type of weights.
        bias: type of biases; None where they stay in float.
        symmetric: types of activations whose zero point is 0.
    """

    activation: QType
    weight: QType = INT8_NARROW
    bias: QType | None = INT32
    symmetric: frozenset[QType] = frozenset()


@dataclass(frozen=True)
class FileForm:
    """The form of a target's files.

    Attributes:
        opset: ONNX opset.
        formats: supported formats: "qdq", "qoperator", "tflite".
        contrib: the file may hold operators of ONNX Runtime's own domain.
        passthrough_on_codes: keys of pass-through operators that must be written on codes, between
            QuantizeLinear and DequantizeLinear.
        dequantizes_once: the runtime computes Cast and Mul of stored codes when it loads a file, so
            that a layer on integer weights alone without a kernel of its own is as fast as in
            float. (A DequantizeLinear stays in its graph and runs each time.)
        transposed_weights: linear layers read their weight transposed, as [out, in].
        plain_lookups: rows in blocks of bytes are looked up by operators of ONNX alone.
        fusions: names of the passes (`passes.FOR_FILES`) that fuse operators of a graph about to be
            written, in order.
    """

    opset: int = 18
    formats: tuple[str, ...] = ("qdq",)
    contrib: bool = False
    passthrough_on_codes: frozenset[str] = frozenset()
    fusions: tuple[str, ...] = ()
    dequantizes_once: bool = False
    transposed_weights: bool = True
    plain_lookups: bool = False


@dataclass(frozen=True)
class Target:
    """A runtime on one kind of hardware.

    Attributes:
        name: the name in recipes, files and on the command line.
        description: one line for users.
        types: integer types where a recipe names none.
        kernels: integer kernels by operator key.
        no_kernel: operator key -> why it has no integer kernel, where more can be said than that.
        implicit_fusions: keys of operators that the runtime fuses whatever the plan says: into
            integers between DequantizeLinear and QuantizeLinear, into float in front of a clamp.
            The exporter blocks a fusion that the plan does not want with an identity behind them.
        file: the form of its files.
        rewrites: names of the passes that bring a graph to forms this target runs fast.
        weight_only: operator key -> why only its weights are stored as codes; for operators
            without an integer kernel in this target's formats.
        dynamic: keys of those that also have a kernel which quantizes its inputs in each run,
            taken where a recipe wants it.
        integers_only: nothing runs in float: an operator between floats takes codes, too.
        dynamic_rows: kernels that quantize their input in each run give each row its own range.
        input_block: takes a layer with integer weights alone and the type of its weight, and
            returns the length of the blocks in which its kernel rounds the input to int8, or None
            (see planning/input_rounding.py).
        results_in_parts: files have finer codes for the results of small layers
            (see planning/result_parts.py).
        fixed_outputs: operator key -> the parameters that its kernel gives its output, whatever
            the data; one for each type that the kernel computes with.
        same_parameters: keys of operators whose kernel averages or compares codes, so that output
            and input have equal parameters.
        saturation_limit: the largest size of a sum of two weights that meet, with which no
            kernel saturates (see saturation.py); None where sums have 32 bits from the start.
        agreement: numerics profiles of all CPUs that the file runs on. Scales are chosen so that
            operators whose formulas differ between them give equal codes
            (calibration/portable_scales.py).
        machines: profiles of the CPUs on which a file can be verified; empty: all.
        profile: the numerics profile whose codes the target computes; None where there is none.
        runtime: the name of the runtime (see backends/formats.py) that verification runs on
            this machine; None where it runs elsewhere and the file is run as written.
        costs: the times of operators by which a plan leaves convolutions in float; None: it leaves
            none for speed.
        timed_in: name of the other runtime (backends/formats.py) whose speed counts; "" for
            that of the file's format.
        transformers: mode of transformers, if none is chosen.
    """

    name: str
    description: str
    types: Types
    kernels: Mapping[str, KernelRule]
    no_kernel: Mapping[str, str] = field(default_factory=dict)
    implicit_fusions: frozenset[str] = frozenset()
    file: FileForm = FileForm()
    rewrites: tuple[str, ...] = ()
    integers_only: bool = False
    weight_only: Mapping[str, str] = field(default_factory=dict)
    dynamic: frozenset[str] = frozenset()
    dynamic_rows: bool = False
    input_block: Callable[[fx.Node, Observed], int | None] = _computes_in_float
    results_in_parts: bool = False
    fixed_outputs: Mapping[str, tuple[Fixed, ...]] = field(default_factory=dict)
    same_parameters: frozenset[str] = frozenset()
    saturation_limit: int | None = None
    agreement: tuple[str, ...] = ()
    machines: frozenset[str] = frozenset()
    profile: str | None = None
    runtime: str | None = None
    costs: CostTable | None = None
    timed_in: str = ""
    transformers: str = "static"

    def schemes(self, key: str) -> tuple[Scheme, ...]:
        """Return the schemes of an operator's kernel, all types filled in; () without a kernel."""
        rule = self.kernels.get(key)
        offered = rule.schemes if rule is not None else ()
        return tuple(s.with_defaults(self.types.activation, self.types.weight) for s in offered)
