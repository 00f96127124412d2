"""The file of a model whose blocks are converted: written from the whole graph and its plan.

So it has the nodes, names and fusions of a file of a model in memory, wherever blocks end. Weights
are deferred: read, rounded and written one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qtool.algorithms.acceptance import quantized_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.backends.onnx.file_info import FileInfo
from qtool.backends.onnx.origin import Origin, present_versions
from qtool.backends.onnx.self_test_format import SelfTest, attach
from qtool.backends.onnxruntime.planned_export import OnnxExport
from qtool.backends.onnxruntime.self_test.inputs import SAMPLES
from qtool.backends.onnxruntime.self_test_creation import make_self_test
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.blockwise.block_conversion import BlockwiseRun
from qtool.blockwise.changed_values import with_changed_values
from qtool.blockwise.converted_blocks import changes_of
from qtool.blockwise.memory_plan import OF_SELF_TEST
from qtool.calibration.solve_parameters import Parameters
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.graph.cut import weight_bytes
from qtool.frontends.captured_model import Captured
from qtool.simulation.fake_quantized import FakeQuantized

TOO_LARGE = "it takes more memory than its conversion was to take"


def write_whole(
    run: BlockwiseRun, path: Path, fingerprint: str, example: Batch, memory: int
) -> None:
    """Write the whole model into the checkpoint, with its self-test.

    Args:
        run: all its blocks are finished.
        path: final path of the file.
        fingerprint: of the model.
        example: inputs of the model.
        memory: bytes that making the self-test may take.

    Raises:
        ExportError: an operator cannot be written.
        OSError: the file cannot be written.
    """
    checkpoint, plan, params = run.checkpoint, run.plan, dict(run.parameters.params)
    graph = replace(run.whole, module=G.clone(run.whole.module))
    for index in range(len(run.blocks)):
        with_changed_values(graph.module, plan, params, checkpoint.block(index))
    captured, parameters = Captured(run.whole, fingerprint), Parameters(params)
    module = quantized_module(ConversionState(captured, graph, plan, parameters=parameters))
    simulation = FakeQuantized(graph, module, run.whole, plan, params)
    changes, origin = (
        changes_of(checkpoint.finished),
        Origin(fingerprint, versions=present_versions()),
    )
    fixed = {k: v.tolist() for k, v in FixedInputs.of(graph.module).values.items()}
    info = FileInfo.of_plan(plan, changes, origin, fixed)
    OnnxExport(simulation, info.metadata()).write(checkpoint.whole, path.resolve().name)
    test = SelfTest("", missing=TOO_LARGE)
    if OF_SELF_TEST * sum(map(weight_bytes, G.calls(graph.graph))) <= memory:
        few = run.whole.head(example, SAMPLES)
        test = make_self_test(ExportedFile(checkpoint.whole), few.arrays(), simulation.macs)
    attach(checkpoint.whole, test)
