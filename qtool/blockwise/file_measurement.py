"""What the file of a block-wise conversion computes on new samples, as of a model in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.planned_export import PlannedOnnx
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.blockwise.block_conversion import BlockwiseRun
from qtool.blockwise.stored_data import StoredBatch
from qtool.conversion.fidelity_measurement import EstimateSamples, measure_estimate
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.cut import weight_bytes
from qtool.core.records import from_json, to_json
from qtool.distributed import Ranks
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification.estimate import CALIBRATION, ESTIMATE, Estimate


def measure_file(
    run: BlockwiseRun, stored: Sequence[StoredBatch], path: Path, memory: int
) -> Estimate | None:
    """Return the errors of the outputs of a file on the measured samples, in its runtime.

    None where file and float model together take more memory than given: what the blocks' own
    simulation says counts then.

    Args:
        run: a conversion whose file is written.
        stored: the batches of the data.
        path: the file, with its weights next to it.
        memory: bytes.
    """
    floats = sum(map(weight_bytes, G.calls(run.whole.graph)))
    file_bytes = sum(file.stat().st_size for file in model_files(path))
    if floats + 2 * file_bytes > memory:  # a session holds packed weights next to those it read
        return None
    graph = replace(run.whole, module=G.with_values(run.whole.module))
    batches = [_inputs(run, batch) for batch in stored if batch.measured]
    held_out = not all(batch.measured for batch in stored)
    samples = EstimateSamples(ESTIMATE if held_out else CALIBRATION, batches)
    params = dict(run.parameters.params)
    simulation = FakeQuantized(graph, graph.module, graph, run.plan, params)
    file = PlannedOnnx(simulation, ExportedFile(path), batches[0])
    try:
        return measure_estimate(simulation, samples, file)
    finally:
        file.file.close()


def _inputs(run: BlockwiseRun, batch: StoredBatch) -> Batch:
    """Return a measured batch as arguments of the graph."""
    values, _ = run.checkpoint.measured.load(batch.number)
    return run.whole.call_of([values[i.name] for i in run.whole.inputs])


def share_estimate(ranks: Ranks, estimate: Estimate | None) -> Estimate | None:
    """Return the estimate of rank 0 on all ranks."""
    text = ranks.broadcast(json.dumps(estimate and to_json(estimate)).encode())
    value = json.loads(text)
    return None if value is None else from_json(Estimate, value)
