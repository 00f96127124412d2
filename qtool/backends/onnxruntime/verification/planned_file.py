"""Checks of an ONNX file against the fake-quantized model that it was written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnx.executed_coverage import executed_coverage
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.node_parity import compare_nodes
from qtool.backends.onnxruntime.verification.portability import portability
from qtool.backends.onnxruntime.verification.qdq_structure import (
    Expected,
    check_structure,
    check_well_formed,
)
from qtool.backends.runtime import Runtime
from qtool.backends.runtimes import find_runtime
from qtool.core.data import Batch
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import target
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


Arrays = Sequence[np.ndarray[Any, Any]]


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
    if runtime is None:
        optimised = None
    elif runtime is ONNXRUNTIME:
        optimised = exported.run(inputs)
    else:
        optimised = runtime.run(exported.path, inputs)
    samples = len(inputs[0]) if inputs and inputs[0].ndim else 1
    return Parity(
        samples,
        difference(reference, as_written, steps),
        None if optimised is None else difference(expected, optimised, steps),
        TOLERANCE,
        "" if runtime is None or runtime is ONNXRUNTIME else str(runtime),
    )
