"""Checks of an ONNX file against the fake-quantized model that it was written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from qtool.backends.onnx.checker import check_model
from qtool.backends.onnx.executed_coverage import executed_coverage
from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import (
    OnnxModel,
    Source,
    array_of,
    input_at,
    is_constant,
)
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.node_parity import compare_nodes
from qtool.backends.onnxruntime.verification.portability import portability
from qtool.backends.runtime import Runtime
from qtool.backends.runtimes import find_runtime
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import target
from qtool.planning.targets.saturation import largest_pair_sums
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification import Coverage, Exactness, planned_coverage
from qtool.verification.parity import TOLERANCE, Parity, difference
from qtool.verification.portability import Portability

_NODE_SAMPLES = 4
"""Samples for the comparison node by node, which holds all intermediate values at once."""
_PORTABILITY_SAMPLES, _PORTABILITY_MACS = 32, 2 * 10**9
"""Samples for other CPUs; fewer where they take more multiply-accumulates than this."""


def check_correctness(
    model: FakeQuantized, file: ExportedFile, batch: Batch, inputs: Sequence[Any]
) -> tuple[Parity, Exactness | None]:
    """Check whether a file computes what the plan says.

    Args:
        model: the model that the file was written from.
        file: the exported file.
        batch: the samples to compare outputs on.
        inputs: the arrays of the batch.

    Returns:
        Parity with fake quantization; exactness, None where the runtime's graph is not readable.
    """
    chosen = target(model.plan.target)
    integer = {d.node for d in model.plan.nodes if d.execution is Execution.INTEGER}
    symmetric = frozenset(t.name for t in chosen.types.symmetric)
    types = Expected(
        chosen.types.bias is not None,
        symmetric,
        chosen.saturation_limit,
        chosen.file.transposed_weights,
    )
    check_well_formed(file.file)
    check_structure(file.qdq, integer, types)
    used, _ = find_runtime(chosen)
    readable = used is not None and used.graph_readable
    few = model.graph.smaller(batch, _NODE_SAMPLES)
    expected, expected_few = model.run(batch), model.run(few)
    if readable:  # frees the session's memory for the engine
        file.run(inputs)
        file.close()
        model.trim_memory()
    program = file.program() if readable else None
    nodes, few_outputs = compare_nodes(file, model.module, model.to_device(few), program)
    scales = model.output_scales()
    parity = check_parity(file, inputs, expected, scales, used, (expected_few, few_outputs))
    parity = replace(parity, steps=nodes)
    if not readable:
        return parity, None
    exactness = compare_codes(file, [inputs])
    if exactness.exact:  # nodes and kernels are checked: outputs need no limit
        parity = replace(parity, tolerance=None)
    return parity, exactness


def measure_coverage(file: ExportedFile, plan: QuantPlan, used: Runtime | None) -> Coverage:
    """Return what runs in integers: read from the runtime's graph, reported by it, or planned."""
    if used is not None and used.graph_readable:
        return audit(file)
    if used is not None and used.executed_kernels is not None:
        return executed_coverage(file.path, plan, used)
    return planned_coverage(plan)


def measure_portability(
    model: FakeQuantized, file: ExportedFile, sample: Batch
) -> Portability | None:
    """Compare a file's results between CPUs, on as many samples as are cheap."""
    affordable = min(_PORTABILITY_SAMPLES, _PORTABILITY_MACS // max(1, model.macs))
    few = model.graph.smaller(sample, max(_NODE_SAMPLES, affordable))
    same = bool(target(model.plan.target).agreement)
    return portability(file, machine_profile(), few.arrays(), same)


Arrays = Sequence[Array]


def check_parity(
    file: ExportedFile | str | Path,
    inputs: Arrays,
    expected: Arrays,
    steps: Sequence[float | None],
    runtime: Runtime | None = ONNXRUNTIME,
    written: tuple[Arrays, Arrays] | None = None,
) -> Parity:
    """Run a file on one batch, as written and optimised, and compare its outputs.

    Args:
        file: the file.
        inputs: arrays in the order of the file's inputs.
        expected: outputs of the fake-quantized model.
        steps: size of a code of each output (its scale), None for a float output.
        runtime: the target's runtime; None runs the file as written only.
        written: expected outputs and outputs as written of another batch, if they are known.
    """
    exported = ExportedFile.of(file)
    reference, as_written = written or (expected, exported.run_as_written(inputs))
    optimised = None if runtime is None else exported.run_in(runtime, inputs)
    samples = len(inputs[0]) if inputs and inputs[0].ndim else 1
    return Parity(
        samples,
        difference(reference, as_written, steps),
        None if optimised is None else difference(expected, optimised, steps),
        TOLERANCE,
        "" if runtime is None or runtime is ONNXRUNTIME else str(runtime),
    )


# Checks of a QDQ file that ONNX Runtime does not make, although it computes wrong results.
#
# It accepts a wrong channel axis and a wrong bias scale of a Gemm and gives wrong numbers; an
# activation scale that is not a scalar makes the session fail after fusion; a float weight keeps
# its layer in float.


_LAYERS = ("Conv", "Gemm")


@dataclass(frozen=True)
class Expected:
    """Requirements of a target.

    Attributes:
        integer_bias: biases are int32 codes.
        symmetric: names of the types of activations whose zero point is 0.
        saturation_limit: see `Target`.
        transposed_weights: see `FileForm`; without it either order is right.
    """

    integer_bias: bool = True
    symmetric: frozenset[str] = frozenset()
    saturation_limit: int | None = None
    transposed_weights: bool = True


def check_structure(
    model: Source, integer_nodes: set[str], expected: Expected = Expected()
) -> None:
    """Check every integer node of a QDQ model, and every scale.

    Args:
        model: the exported model.
        integer_nodes: names of the nodes that the plan computes in integers.
        expected: what the target requires.

    Raises:
        VerificationError: naming the node and what is wrong with it.
    """
    for node in OnnxModel.of(model).nodes:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            _check_scale(node, expected)
        if node.op_type == "MatMulInteger" and expected.saturation_limit is not None:
            _check_pairs(node, _constant(node, 1), 1, expected.saturation_limit)
        if node.op_type == "DynamicQuantizeLSTM" and expected.saturation_limit is not None:
            for index in (1, 2):  # codes [directions, in, out]
                codes = np.swapaxes(_constant(node, index), 1, 2)
                _check_pairs(node, codes, 1, expected.saturation_limit)
        if node.name in integer_nodes and node.op_type in _LAYERS:
            _check_layer(node, expected)


def check_well_formed(model: Source) -> None:
    """Run the ONNX checker, which compares inferred types and shapes with those in the file.

    Raises:
        VerificationError: with the checker's message.
    """
    try:
        check_model(OnnxModel.of(model).outline, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise VerificationError(f"the file is not well-formed ONNX: {error}") from error


def _check_scale(node: Node, expected: Expected) -> None:
    scale = _constant(node, 1)
    if scale is None:
        raise VerificationError(f"{node.name}: its scale is not a constant")
    weight = is_constant(input_at(node, 0))  # all-zero weights may have a scale of 0
    if not (np.isfinite(scale).all() and ((scale > 0) | (weight & (scale == 0))).all()):
        raise VerificationError(f"{node.name}: its scale is not positive and finite: {scale}")
    if not weight and scale.ndim != 0:
        raise VerificationError(f"{node.name}: the scale of an activation must be a scalar")
    zero = _constant(node, 2)
    if zero is not None and str(zero.dtype) in expected.symmetric and np.any(zero):
        raise VerificationError(f"{node.name}: its zero point must be 0 on this target")


def _check_layer(node: Node, expected: Expected) -> None:
    x, weight = _dequantized(node, 0, "input"), _dequantized(node, 1, "weight")
    codes, scale = _constant(weight, 0), _constant(weight, 1)
    is_in_out = node.op_type == "Gemm" and not node.attributes.get("transB", 0)
    axis = int(is_in_out)  # of the output channels in the weight
    if codes is None or scale is None or codes.dtype != np.int8:
        kind = "not stored" if codes is None else f"{codes.dtype}, not int8"
        raise VerificationError(f"{node.name}: its weight is {kind}")
    along = int(weight.attributes.get("axis", 1))
    if scale.ndim and (along != axis or scale.shape[0] != codes.shape[axis]):
        raise VerificationError(
            f"{node.name}: weight scales along axis {along}, output channels on axis {axis}"
        )
    if is_in_out and expected.transposed_weights:
        raise VerificationError(f"{node.name}: Gemm without transB, its channel axis is not 0")
    if expected.saturation_limit is not None:
        _check_pairs(node, codes, axis, expected.saturation_limit)
    bias = input_at(node, 2)
    if bias is not None and expected.integer_bias:
        _check_bias(node, np.asarray(_constant(x, 1)) * scale)
    elif bias is not None and not is_constant(bias):
        raise VerificationError(f"{node.name}: its bias is not a float constant")


def _dequantized(node: Node, index: int, what: str) -> Node:
    """Return the DequantizeLinear that computes an input."""
    value = input_at(node, index)
    maker = None if value is None else value.producer
    if maker is None or maker.op_type != "DequantizeLinear":
        raise VerificationError(f"{node.name}: its {what} is not dequantized from codes")
    return maker


def _check_pairs(node: Node, codes: Any, axis: int, limit: int) -> None:
    groups = int(node.attributes.get("group", 1))
    pairs = largest_pair_sums(torch.from_numpy(codes), axis, groups)
    if bool((pairs > limit).any()):
        raise VerificationError(
            f"{node.name}: two weights of channel {int(pairs.argmax())} sum to {int(pairs.max())}; "
            f"beyond {limit} their products saturate 16 bits on this target"
        )


def _check_bias(node: Node, expected: Any) -> None:
    bias = _dequantized(node, 2, "bias")
    codes = _constant(bias, 0)
    if codes is None or codes.dtype != "int32":
        raise VerificationError(f"{node.name}: its bias is not dequantized from int32")
    if not np.array_equal(_constant(bias, 1), expected.astype(np.float32)):
        raise VerificationError(f"{node.name}: its bias scale is not input scale x weight scale")


def _constant(node: Node, index: int) -> Any:
    """Return the array of a constant input; None for a computed one."""
    return array_of(input_at(node, index))
