"""Restore the quantized model of an exported file with its float model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import replay_changes
from qtool.algorithms.registry import STEPS
from qtool.backends.formats import open_file
from qtool.backends.model_file import StoredParameters
from qtool.calibration.solve_parameters import Parameters
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PlanError, QtoolError, VerificationError
from qtool.core.packed_codes import unpack
from qtool.core.quant_params import QuantParams, fixed_params, torch_dtype
from qtool.core.remedies import OtherFile
from qtool.core.types import INT32, Array, Derived, Dynamic, Fixed, Observed, Requantized
from qtool.frontends.captured_model import Captured
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Execution, Kind, Point, QuantPlan


def restore(path: str | Path, captured: Captured, sample: Batch) -> Quantized:
    """Return the quantized model that `path` was exported from.

    The plan is made again from the metadata of the file. Parameters come from the file, and so do
    weights that a step of the conversion or training changed.

    Args:
        captured: the float model.
        sample: a batch of its inputs.

    Raises:
        VerificationError: the file was not made by qtool, or from another model.
    """
    conversion = open_file(path).conversion()
    if conversion is None:
        raise VerificationError(
            f"{path} was not made by qtool", OtherFile("give the file that `qtool quantize` wrote")
        )
    info, stored = conversion.info, conversion.stored
    try:
        plan = captured.plan(info.target, info.observer, info.recipe)
    except PlanError as error:
        raise VerificationError(
            f"{path} does not fit this model: {error.problem}", *error.remedies
        ) from error
    changes = [replace(c, arrays=_tensors(c.arrays)) for c in info.changes]
    state = replay_changes(STEPS, ConversionState.start(captured, plan), changes)
    exported = {(n.node, n.op, n.form) for n in info.nodes}
    if exported != {
        (d.node, d.op, d.execution.value)
        for d in state.plan.nodes
        if d.execution is not Execution.SHAPE
    }:
        raise VerificationError(f"{path} was made from another model, or with other options")
    stored = stored.split(_outputs(state))
    nodes = {G.name_of(n): n for n in state.graph.module.graph.nodes}
    params = {
        p.name: _without_zeros(_params(p, state.plan, stored), nodes, p)
        for p in state.plan.placed
        if not isinstance(p.spec, Dynamic)
    }
    model = Quantized(replace(state, parameters=Parameters(params)), state.graph.bind(sample))
    _take_weights(model, stored)
    return model


def _outputs(state: ConversionState) -> dict[str, int]:
    """Return the number of outputs of the linear layer of each weight point."""
    module, plan = state.graph.module, state.plan
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    outputs = {}
    for point in plan.placed:
        user = plan.decision(point.edges[0].user) if point.kind is Kind.WEIGHT else None
        if user is not None and user.op == "linear":
            outputs[point.name] = len(G.tensor(module, nodes[point.edges[0].source]))
    return outputs


def _tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _params(point: Point, plan: QuantPlan, stored: StoredParameters) -> QuantParams:
    root = plan.point(plan.root(point.name))
    if isinstance(root.spec, Fixed):
        return fixed_params(root.spec)
    scale, zero = map(torch.from_numpy, stored.parameters(point.name, root.name))
    if isinstance(root.spec, Derived):
        return QuantParams(INT32, scale, zero, 0)
    if isinstance(root.spec, Requantized):
        return QuantParams(root.spec.qtype, scale, zero)
    assert isinstance(root.spec, Observed)
    spec = root.spec
    if point.edges and _is_lstm_weight(plan, point):  # equal in both directions
        return QuantParams(spec.qtype, scale[0], zero[0], spec.axis)
    if scale.dim() == 2:  # in blocks, as MatMulNBits has them
        qtype = spec.qtype
        if qtype.signed:
            zero = torch.zeros(scale.shape, dtype=torch.int64)
        else:
            bits = unpack(zero.to(torch.uint8), scale.shape[1], qtype.bits)
            zero = bits.to(torch.int64)
        if spec.block is None:  # a scale for each channel, repeated
            return QuantParams(qtype, scale[:, 0], zero[:, 0], spec.axis)
        return QuantParams(qtype, scale, zero, spec.axis, spec.block)
    return QuantParams(spec.qtype, scale, zero, spec.axis if scale.dim() else None)


def _without_zeros(params: QuantParams, nodes: Mapping[str, fx.Node], point: Point) -> QuantParams:
    """Return parameters by channel without those of channels of zeros, which the file adds."""
    if params.axis is None or params.scale.dim() != 1 or not point.edges:
        return params
    count = G.shape(nodes[point.edges[0].source])[params.axis]
    return replace(params, scale=params.scale[:count], zero_point=params.zero_point[:count])


def _take_weights(model: Quantized, stored: StoredParameters) -> None:
    """Replace weights that do not round to the codes of the file by the dequantized codes."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    points = quant_points(model.module)
    for point in model.plan:
        array = stored.codes(point.name)
        if point.kind is Kind.ACTIVATION or array is None or point.name not in points:
            continue
        codes = torch.from_numpy(array)
        params = model.parameters[point.name]
        tensor = G.tensor(model.module, nodes[point.edges[0].source])
        if codes.dim() == 3 and tensor.dim() == 2:
            bits, half = params.qtype.bits, 2 ** (params.qtype.bits - 1)
            codes = unpack(codes.reshape(len(tensor), -1), tensor.shape[-1], bits).to(torch.int16)
            codes = codes - (half if params.qtype.signed else 0)
            codes = codes.to(torch_dtype(params.qtype))
        elif _is_transposed(model.plan, point):
            codes = codes.t()
        elif _is_lstm_weight(model.plan, point):
            codes = codes.transpose(1, 2)
        codes = codes[tuple(map(slice, tensor.shape))]  # the file may have more channels, of zeros
        with torch.no_grad():
            if not torch.equal(params.quantize(tensor.detach()), codes):
                tensor.copy_(params.dequantize(codes))


def _is_lstm_weight(plan: QuantPlan, point: Point) -> bool:
    """Return True if a weight has the layout of DynamicQuantizeLSTM."""
    user = plan.decision(point.edges[0].user)
    return user is not None and user.op == "lstm" and user.execution is Execution.DYNAMIC


def _is_transposed(plan: QuantPlan, point: Point) -> bool:
    """Return True if a weight is [in, out] in the file, the layout of its kernel."""
    user = plan.decision(point.edges[0].user)
    return (
        user is not None
        and user.op == "linear"
        and user.execution in (Execution.DYNAMIC, Execution.WEIGHTS)
    )


def try_restore(path: str | Path, captured: Captured, sample: Batch) -> Quantized | str:
    """Return `restore`, or the reason in a sentence if it fails."""
    try:
        return restore(path, captured, sample)
    except QtoolError as error:
        return str(error)
