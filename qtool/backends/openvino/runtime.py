"""OpenVINO: runs files of its target before they are written; rewrites that avoid its defects.

It runs in a process of its own, which it crashes on a few networks (docs/upstream.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from qtool.backends import subprocess_runner
from qtool.backends.onnx.graph_edits import add_int64, append_node, attributes_of
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays, ExecutedKernel, Runtime, Workaround
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.core.versions import version_of

_Widths = Array
"""Pads as [begin or end, axis]."""


# Workaround for OpenVINO: a maximum or minimum along axes that is quantized.
#
# Runtime: OpenVINO, seen in 2026.4, operators ReduceMax and ReduceMin before QuantizeLinear.
# Defect: the FakeQuantize is fused into the kernel of the reduction, which keeps its results in the
# type of the codes before it quantizes them: rounded to integers, negative ones to 0.
# Rewrite: a reshape between the two. The reduction keeps its dimensions and a Squeeze drops them,
# or it drops them and an Unsqueeze restores them. A reshape that changes nothing would be removed
# before the fusion.


def isolate_reduce_extremes(model: ir.Model) -> None:
    """Insert a Squeeze or Unsqueeze behind each float ReduceMax and ReduceMin, in place."""
    for node in [n for n in model.graph if n.op_type in ("ReduceMax", "ReduceMin")]:
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        keep = attributes_of(node).get("keepdims", 1)
        if axes is None or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue  # over all dimensions: a scalar, which no layer reads
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1 - keep)
        append_node(model, node, "Unsqueeze" if keep else "Squeeze", [axes])


REDUCE_EXTREMES = Workaround(
    key="reduce-extremes",
    package="openvino",
    reason="a FakeQuantize fused into ReduceMax or ReduceMin makes it round to unsigned integers",
    rewrite=isolate_reduce_extremes,
    upstream="https://github.com/openvinotoolkit/openvino/pull/24704",
    reproduction="test_openvino.py::test_quantized_extreme_is_rounded_to_an_unsigned_integer",
)


# Workaround for OpenVINO: a constant pad of one axis between quantized values.
#
# Runtime: OpenVINO, seen in 2026.4, operator Pad between DequantizeLinear and QuantizeLinear.
# Defect: the dequantization is moved behind a pad of a single axis and loses its zero point: padded
# values are off by the zero point. It stays in place before a pad of two axes.
# Rewrite: a second axis is padded by one value, which a Slice removes.


def widen_single_axis_pads(model: ir.Model) -> None:
    """Pad a second axis in each float constant pad of one axis, and cut it off, in place."""
    for pad in [n for n in model.graph if n.op_type == "Pad"]:
        pads = pad.inputs[1] if len(pad.inputs) > 1 else None
        constant = None if pads is None else pads.const_value
        is_float = pad.outputs[0].dtype == ir.DataType.FLOAT
        if constant is None or len(pad.inputs) > 3 or not is_float:
            continue
        widths = constant.numpy().reshape(2, -1)
        axes = np.flatnonzero(widths.any(axis=0))
        is_constant = attributes_of(pad).get("mode", "constant") == "constant"
        if is_constant and len(axes) == 1 and widths.shape[1] > 1 and (widths > 0).any():
            _widen(model, pad, widths, int(axes[0]))


def _widen(model: ir.Model, pad: ir.Node, widths: _Widths, axis: int) -> None:
    other = widths.shape[1] - 1 if axis != widths.shape[1] - 1 else axis - 1
    wide, name = widths.copy(), str(pad.outputs[0].name)
    wide[1, other] += 1
    pads = add_int64(model, f"{name}.pads", wide.reshape(-1))
    bounds = [
        add_int64(model, f"{name}.{suffix}", [value])
        for suffix, value in (("from", 0), ("to", -1), ("axis", other))
    ]
    pad.replace_input_with(1, pads)
    append_node(model, pad, "Slice", bounds)


SINGLE_AXIS_PADS = Workaround(
    key="single-axis-pads",
    package="openvino",
    reason="the dequantization behind a pad of one axis loses its zero point",
    rewrite=widen_single_axis_pads,
    upstream="https://github.com/openvinotoolkit/openvino/pull/5316",
    reproduction="test_openvino.py::test_pad_of_one_axis_is_off_by_the_zero_point",
)

OPENVINO_WORKAROUNDS = (REDUCE_EXTREMES, SINGLE_AXIS_PADS)


_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 where the CPU has it would differ
_NO_KERNELS = ("Const", "Input", "Output")
_CODES = ("u8", "i8")
_NAME_SUFFIXES = (
    "/WithoutBiases",
    "/WithoutBiases/DequantizationMultiply",
    "/DequantizationMultiply",
)
_RUNNER = subprocess_runner.SubprocessRunner(__name__, "OpenVINO")


def _run(path: str | Path, arrays: Arrays) -> list[Array]:
    return list(_RUNNER.call("run", str(path), arrays)[1])


def _executed(path: str | Path) -> tuple[ExecutedKernel, ...]:
    """Return the executed kernels with the nodes that each one fuses.

    OpenVINO adds suffixes to the names of some nodes: `head/WithoutBiases`.
    """
    kernels = []
    for kind, precision, originals in _RUNNER.call("kernels", str(path))[0]["kernels"]:
        if kind in _NO_KERNELS:
            continue
        names = [n for n in originals.split(",") if n]
        bare = {n.removesuffix(suffix) for n in names for suffix in _NAME_SUFFIXES}
        nodes = frozenset({*names, *bare})
        kernels.append(ExecutedKernel(f"{kind} {precision}", precision in _CODES, nodes))
    return tuple(kernels)


def serve() -> None:
    """Answer calls in the subprocess."""
    subprocess_runner.serve({"run": _handle_run, "kernels": _handle_kernels})


def _compile(path: str) -> Any:
    import openvino  # an extra

    try:
        core = openvino.Core()
        return core.compile_model(core.read_model(path), "CPU", _SETTINGS)
    except Exception as error:
        raise VerificationError(f"{path}: OpenVINO does not load it: {error}") from error


def _handle_run(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    compiled = _compile(path)
    try:
        outputs = compiled(dict(enumerate(arrays)))
    except Exception as error:
        raise VerificationError(f"OpenVINO fails on the model: {error}") from error
    return {}, [np.array(outputs[i]) for i in range(len(compiled.outputs))]


def _handle_kernels(path: str, _: Arrays) -> tuple[Message, Arrays]:
    """Return type, precision and original node names of each executed node."""
    keys = ("layerType", "runtimePrecision", "originalLayersNames")
    nodes = _compile(path).get_runtime_model().get_ordered_ops()
    infos = [{k: str(v.astype(str)) for k, v in node.get_rt_info().items()} for node in nodes]
    return {"kernels": [[info[k] for k in keys] for info in infos]}, ()


def _version() -> str | None:
    return version_of("openvino") or None


OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    "openvino",
    _version,
    _run,
    _executed,
    workarounds=OPENVINO_WORKAROUNDS,
)
