"""The file of a model whose blocks are converted: written from the whole graph and its plan.

So it has the nodes, names and fusions of a file of a model in memory, wherever blocks end. Weights
are deferred: read, rounded and written one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from qtool.algorithms.acceptance import quantized_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnx.self_test_format import SelfTest, attach
from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.planned_export import OnnxExport, PlannedOnnx
from qtool.backends.onnxruntime.self_test.inputs import SAMPLES
from qtool.backends.onnxruntime.self_test_creation import make_self_test
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.planned_file import check_correctness
from qtool.blockwise.block_plan import BlockwiseRun
from qtool.blockwise.changed_values import with_changed_values
from qtool.blockwise.converted_blocks import changes_of
from qtool.blockwise.memory_plan import OF_SELF_TEST, OF_VERIFICATION
from qtool.blockwise.stored_data import StoredBatch
from qtool.calibration.solve_parameters import Parameters
from qtool.conversion.fidelity_measurement import EstimateSamples, measure_estimate
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.errors import VerificationError
from qtool.core.graph.cut import weight_bytes
from qtool.core.quant_params import QuantParams
from qtool.frontends.captured_model import Captured
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification.estimate import Estimate

TOO_LARGE = "it takes more memory than its conversion was to take"


def write_whole(
    run: BlockwiseRun, path: Path, fingerprint: str, example: Batch, memory: int
) -> None:
    """Write the whole model into the checkpoint, with its self-test.

    Args:
        run: all its blocks are finished.
        path: final path of the file.
        fingerprint: fingerprint of the model.
        example: inputs of the model.
        memory: bytes that its verification and its self-test may take.

    Raises:
        ExportError: an operator cannot be written.
        VerificationError: the file does not compute what the plan says.
        OSError: the file cannot be written.
    """
    checkpoint, plan, params = run.checkpoint, run.plan, dict(run.parameters.params)
    graph = replace(run.whole, module=G.clone(run.whole.module))
    for index in range(len(run.blocks)):
        with_changed_values(graph.module, plan, params, checkpoint.block(index))
    simulation = _simulation(run, graph, params)
    origin = Origin(fingerprint, versions=present_versions())
    fixed = {k: v.tolist() for k, v in FixedInputs.of(graph.module).values.items()}
    changes = changes_of(checkpoint.finished, _arrays(run, graph))
    info = FileInfo.of_plan(plan, changes, origin, fixed)
    OnnxExport(simulation, info.metadata()).write(checkpoint.whole, path.resolve().name)
    size, few = sum(map(weight_bytes, G.calls(graph.graph))), graph.smaller(example, SAMPLES)
    if OF_VERIFICATION * size <= memory:
        loaded = replace(graph, module=G.with_values(graph.module))
        _verify(_simulation(run, loaded, params), checkpoint.whole, few)
    test = SelfTest("", missing=TOO_LARGE)
    if OF_SELF_TEST * size <= memory:
        test = make_self_test(ExportedFile(checkpoint.whole), few.arrays(), simulation.macs)
    attach(checkpoint.whole, test)


def _arrays(run: BlockwiseRun, graph: G.FloatGraph) -> dict[str, dict[str, torch.Tensor]]:
    """Return step -> the constants that its change has, by attribute, in one order for any cut."""
    names = dict[str, set[str]]()
    for record in run.checkpoint.finished:
        for step, own in record.arrays.items():
            names.setdefault(step, set()).update(own)
    held = {str(n.target): n for n in graph.graph.find_nodes(op="get_attr")}
    return {
        step: {name: G.read_values(G.tensor(graph.module, held[name])) for name in sorted(own)}
        for step, own in names.items()
    }


def _simulation(
    run: BlockwiseRun, graph: G.FloatGraph, params: dict[str, QuantParams]
) -> FakeQuantized:
    """Return the simulation of the whole network, with the values that a graph has."""
    state = ConversionState(Captured(graph, ""), graph, run.plan, parameters=Parameters(params))
    return FakeQuantized(graph, quantized_module(state), graph, run.plan, params)


def _verify(simulation: FakeQuantized, file: Path, batch: Batch) -> None:
    """Check a file as that of a model in memory: what the runtime fuses across blocks, too."""
    exported = ExportedFile(file)
    parity, exactness = check_correctness(simulation, exported, batch, batch.arrays())
    exported.close()
    if not (parity.passed and (exactness is None or exactness.passed)):
        why = f"{exactness}; {parity}".replace("\n", "; ")
        raise VerificationError(f"the model does not compute what was planned ({why})")


def measure_file(run: BlockwiseRun, path: Path, memory: int) -> Estimate | None:
    """Return the errors of the outputs of a file on the measured samples, in its runtime.

    None where file and float model together take more memory than given: what the blocks' own
    simulation says counts then.

    Args:
        run: a conversion whose file is written.
        path: the file, with its weights next to it.
        memory: bytes.
    """
    floats = sum(map(weight_bytes, G.calls(run.whole.graph)))
    file_bytes = sum(file.stat().st_size for file in model_files(path))
    if floats + 2 * file_bytes > memory:  # a session holds packed weights next to those it read
        return None
    graph = replace(run.whole, module=G.with_values(run.whole.module))
    batches = [_inputs(run, batch) for batch in run.batches if batch.measured]
    samples = EstimateSamples(run.kind, batches)
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
