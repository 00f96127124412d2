"""How each ONNX operator of a QDQ model is bound to an integer kernel: one row per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtool.backends.kernels.params import same_params
from qtool.backends.onnx import moves
from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.operator_rows import ONNX_OPERATORS
from qtool.backends.onnx.reading import array_of, input_at
from qtool.backends.onnxruntime.integer_engine.integer_program import Kernel
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.backends.profiles import Profile
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import OtherFile
from qtool.core.types import INT32, Array
from qtool.core.windows import last_pad, spans


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One operator with all that a binder needs.

    Attributes:
        node: the operator.
        graph: the quantized graph around it.
        profile: whose kernels are bound.
        inputs: its data inputs.
        out: parameters of its output, None where that is float.
    """

    node: Node
    graph: QdqGraph
    profile: Profile
    inputs: Sequence[QuantizedTensor]
    out: QuantParams | None

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.node.attributes

    def bind(self, op: str, *args: Any, **kwargs: Any) -> Kernel:
        return self.profile.bind(op, *args, **kwargs)

    def bias(self, index: int, weight: QuantizedTensor) -> torch.Tensor | None:
        """Return the codes of the bias; a float constant is quantized as the runtime does it."""
        value = input_at(self.node, index)
        if value is None:
            return None
        codes = self.graph.codes(value)
        if codes is not None and codes.constant is not None:
            return codes.constant
        real = array_of(value)
        if real is None:
            raise KernelError(f"{self.node.name}: its bias is computed at run time")
        scale = self.inputs[0].params.scale * weight.params.scale
        zero = torch.zeros(len(real), dtype=torch.int64)
        params = QuantParams(INT32, scale.expand(len(real)), zero, 0)
        return params.quantize(torch.from_numpy(real.copy()))


@dataclass(frozen=True)
class Operator:
    """How an operator is bound, and what an integer kernel requires.

    Attributes:
        bind: returns the kernel of a call.
        inputs: the number of leading inputs that are data; None for all.
        weight: the second input is a weight.
        float_output: the kernel may return float, without a QuantizeLinear.
        same_params: requires equal input and output parameters.
        fixed_output: required scale and zero point of the output.
        mixed_types: inputs and output may have different types.
    """

    bind: Callable[[OperatorCall], Kernel]
    inputs: int | None = 1
    weight: bool = False
    float_output: bool = False
    same_params: bool = False
    fixed_output: tuple[float, int] | None = None
    mixed_types: bool = False

    def fits(self, x: QuantParams, out: QuantParams) -> bool:
        output = (float(out.scale), int(out.zero_point))
        return (not self.same_params or same_params(x, out)) and self.fixed_output in (None, output)


def _weight(call: OperatorCall) -> QuantizedTensor:
    weight = call.graph.codes(input_at(call.node, 1))
    if weight is None or weight.constant is None:
        raise KernelError(f"{call.node.name}: its weight is not a dequantized constant")
    return weight


def _spatial(call: OperatorCall, rank: int) -> dict[str, Any]:
    attributes = call.attributes
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise KernelError(
            f"{call.node.name}: auto_pad is not supported", OtherFile("write the pads out")
        )
    return {
        "stride": attributes.get("strides", [1] * rank),
        "pads": attributes.get("pads", [0] * 2 * rank),
        "dilation": attributes.get("dilations", [1] * rank),
    }


def _conv(call: OperatorCall) -> Kernel:
    weight = _weight(call)
    assert weight.constant is not None
    return call.bind(
        "conv",
        call.inputs[0].params,
        weight.params,
        call.out,
        weight.constant,
        call.bias(2, weight),
        groups=call.attributes.get("group", 1),
        **_spatial(call, weight.constant.dim() - 2),
    )


def _gemm(call: OperatorCall) -> Kernel:
    attributes = call.attributes
    if (
        attributes.get("alpha", 1.0) != 1.0
        or attributes.get("beta", 1.0) != 1.0
        or attributes.get("transA", 0)
    ):
        raise KernelError(
            f"{call.node.name}: Gemm with alpha, beta or transA has no integer kernel"
        )
    return _linear(call, transposed=bool(attributes.get("transB", 0)), bias_at=2)


def _matmul(call: OperatorCall) -> Kernel:
    second = call.graph.codes(input_at(call.node, 1))
    if second is not None and second.constant is not None and second.constant.dim() == 2:
        return _linear(call, transposed=False, bias_at=2)
    if second is None:
        raise KernelError(f"{call.node.name}: its second operand is not dequantized from codes")
    return call.bind("matmul", call.inputs[0].params, second.params, call.out)


def _linear(call: OperatorCall, transposed: bool, bias_at: int) -> Kernel:
    weight = _weight(call)
    assert weight.constant is not None
    codes, params = weight.constant, weight.params
    if not transposed:  # kernels take [out, in]
        axis = None if params.axis is None else 1 - params.axis % 2
        codes, params = (
            codes.t().contiguous(),
            QuantParams(params.qtype, params.scale, params.zero_point, axis),
        )
    bias = call.bias(bias_at, weight)
    return call.bind("linear", call.inputs[0].params, params, call.out, codes, bias)


def _concat(call: OperatorCall) -> Kernel:
    params = [c.params for c in call.inputs]
    return call.bind("concat", params, call.out, axis=int(call.attributes["axis"]))


def _average(call: OperatorCall) -> Kernel:
    attributes = call.attributes
    padded = any(attributes.get("pads", ())) or attributes.get("ceil_mode", 0)
    counted = bool(attributes.get("count_include_pad", 0) and padded)
    if counted and attributes.get("ceil_mode", 0):
        raise KernelError(f"{call.node.name}: ceil_mode with counted padding has no integer kernel")
    spatial = _spatial(call, len(attributes["kernel_shape"]))
    dilation = spatial.pop("dilation")

    def pool(pads: Sequence[int]) -> Kernel:
        options = {**spatial, "pads": pads, "count_include_pad": counted}
        params = call.inputs[0].params
        return call.bind(
            "average_pool", params, call.out, kernel=attributes["kernel_shape"], **options
        )

    return _windows(attributes, {**spatial, "dilation": dilation}, pool)


def _max(call: OperatorCall) -> Kernel:
    attributes = call.attributes
    spatial = _spatial(call, len(attributes["kernel_shape"]))

    def pool(pads: Sequence[int]) -> Kernel:
        options = {**spatial, "pads": pads}
        if all(d == 1 for d in options["dilation"]):
            del options["dilation"]  # not every profile has it
        params = call.inputs[0].params
        return call.bind("max_pool", params, call.out, kernel=attributes["kernel_shape"], **options)

    return _windows(attributes, spatial, pool)


def _windows(
    attributes: Mapping[str, Any],
    spatial: Mapping[str, Any],
    pool: Callable[[Sequence[int]], Kernel],
) -> Kernel:
    """Return the pool; with ceil_mode, one that pads the end as the size of its input requires."""
    if not attributes.get("ceil_mode", 0):
        return pool(spatial["pads"])
    pools: dict[tuple[int, ...], Kernel] = {}

    def run(codes: torch.Tensor) -> Any:
        sizes = tuple(codes.shape[2:])
        if sizes not in pools:
            pools[sizes] = pool(_ceil_pads(sizes, attributes["kernel_shape"], spatial))
        return pools[sizes](codes)

    return run


def _ceil_pads(
    sizes: Sequence[int], kernel: Sequence[int], spatial: Mapping[str, Any]
) -> list[int]:
    """Return pads (begins, ends) with which rounding down gives the windows of ceil_mode."""
    begins, ends = spatial["pads"][: len(sizes)], spatial["pads"][len(sizes) :]
    covered = spans(kernel, spatial["dilation"])
    return [*begins, *map(last_pad, sizes, covered, spatial["stride"], begins, ends)]


def _softmax(call: OperatorCall) -> Kernel:
    """Bind Softmax; before opset 13 it is taken over all axes from the given one on."""
    attributes, opset = call.attributes, call.graph.model.opset
    if opset >= 13:
        return call.bind(
            "softmax", call.inputs[0].params, call.out, axis=attributes.get("axis", -1)
        )
    over, axis = call.bind("softmax", call.inputs[0].params, call.out), attributes.get("axis", 1)

    def run(codes: torch.Tensor) -> Any:
        return over(codes.flatten(axis % codes.dim())).reshape(codes.shape)

    return run


def _plain(op: str, *names: str) -> Callable[[OperatorCall], Kernel]:
    """Return the binder of an operator of which a kernel takes these attributes."""

    def bind(call: OperatorCall) -> Kernel:
        options = {n: call.attributes[n] for n in names if n in call.attributes}
        return call.bind(op, *(each.params for each in call.inputs), call.out, **options)

    return bind


OPERATORS: Mapping[str, Operator] = {
    **{
        kind: Operator(_plain(row.key, *row.attributes), inputs=row.codes)
        for kind, row in ONNX_OPERATORS.items()
        if row.plain
    },
    "AveragePool": Operator(_average),
    "Concat": Operator(_concat, inputs=None),
    "Conv": Operator(_conv, weight=True, mixed_types=True),
    "Gemm": Operator(_gemm, weight=True, float_output=True, mixed_types=True),
    "GlobalAveragePool": Operator(_plain("global_average_pool")),
    "MatMul": Operator(_matmul, inputs=2, float_output=True, mixed_types=True),
    "MaxPool": Operator(_max, same_params=True),
    "Softmax": Operator(_softmax),
}

SIGNED_OPERATORS: Mapping[str, Operator] = {  # for a runtime with int8 activations
    **OPERATORS,
    "AveragePool": Operator(_average, same_params=True),
    "Sigmoid": Operator(_plain("sigmoid"), fixed_output=(1 / 256, -128)),
    "Softmax": Operator(_softmax, fixed_output=(1 / 256, -128)),
    "Tanh": Operator(_plain("tanh"), fixed_output=(1 / 128, 0)),
}


Move = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Call:
    """A node whose inputs besides the first are constants, as `moves.Call`."""

    name: str
    attributes: Mapping[str, Any]
    constants: Mapping[int, Array]

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def unsupported(self, why: str) -> KernelError:
        return KernelError(f"{self.name}: {why}")


def move_of(node: Node) -> Move | None:
    """Return what a node does to its first input; None for no move, or computed arguments."""
    function = MOVES.get(node.op_type)
    arrays = [array_of(v) for v in node.inputs[1:]]
    unknown = any(v is not None and c is None for v, c in zip(node.inputs[1:], arrays, strict=True))
    if function is None or unknown or len(node.outputs) != 1:
        return None
    constants = {i: a for i, a in enumerate(arrays, 1) if a is not None}
    call = _Call(str(node.name), node.attributes, constants)
    if node.op_type == "Resize" and not _is_exact(call):
        return None
    arguments: list[Any] = list(arrays)
    if node.op_type == "Gather" and arguments[0].ndim:
        arguments[0] = torch.from_numpy(arguments[0].astype(np.int64))

    def move(x: Tensor) -> Tensor:
        return function(call, x, *arguments)

    return move


def _is_exact(resize: _Call) -> bool:
    """Return whether a Resize takes the nearest element at asymmetric positions, rounded down."""
    floor = resize.get("nearest_mode") == "floor"
    asymmetric = resize.get("coordinate_transformation_mode") == "asymmetric"
    nearest = resize.get("mode", "nearest") == "nearest"
    return nearest and floor and asymmetric and bool({2, 3} & resize.constants.keys())


def _resize(
    call: _Call,
    x: Tensor,
    roi: Array | None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Tensor:
    """Take the elements at positions that are rounded as in the runtime, in float32."""
    for i, axis in enumerate(call.get("axes", range(x.dim()))):
        count = x.shape[axis]
        size = int(sizes[i]) if sizes is not None else 0
        step = scales[i] if scales is not None else np.float32(size / count)
        size = size or int(np.float32(count) * step)
        at = np.floor(np.arange(size, dtype=np.float32) / step).astype(np.int64)
        x = x.index_select(axis, torch.from_numpy(at.clip(0, count - 1)))
    return x


MOVES: Mapping[str, Callable[..., Tensor]] = {
    "DepthToSpace": moves.depth_to_space,
    "Expand": moves.expand,
    "Flatten": moves.flatten,
    "Gather": moves.gather,
    "Identity": moves.identity,
    "ReduceMax": moves.reduction(torch.amax),
    "ReduceMin": moves.reduction(torch.amin),
    "Reshape": moves.reshape,
    "Resize": _resize,
    "Slice": moves.slice_elements,
    "Squeeze": moves.squeeze,
    "Tile": moves.tile,
    "Transpose": moves.transpose,
    "Unsqueeze": moves.unsqueeze,
}
"""Operator type -> function of (call, first input, constants)."""
