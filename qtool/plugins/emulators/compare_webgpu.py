"""Outputs of a file on the WebGPU provider, compared with the CPU provider of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from qtool.backends.onnx.storage import load, save
from qtool.backends.onnxruntime.disable_input_rounding import disable_input_rounding
from qtool.core.atomic import scratch_folder
from qtool.core.types import Array
from qtool.plugins.emulators.code_probes import CodeTensor, label, with_outputs
from qtool.plugins.emulators.compare_cpus import new_folder, write_inputs
from qtool.plugins.emulators.cpus import WEBGPU
from qtool.plugins.emulators.equality_counts import Tally, tallies
from qtool.plugins.emulators.jobs import Job, external_files, read_array, run_jobs
from qtool.plugins.emulators.placement import placement
from qtool.plugins.emulators.webgpu_result import (
    FLOAT_DB,
    ROUNDED_DB,
    NodeDifference,
    ProviderOutput,
    WebGpuComparison,
)

ADAPTER = "SwiftShader (a software adapter, without subgroups and float16)"
_PROVIDERS = ("WebGpuExecutionProvider", "CPUExecutionProvider")
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")
_LOSS_DB = 20.0  # of a float node, by cancellation, from inputs with moved codes
_MOVED_DB = 25.0
"""SQNR to which moved codes may lower an output that is not below the limit when every node's
result is returned: of other kernels, which are not fused, other codes move."""
_LEVEL_0 = {"session.qdq_matmulnbits_accuracy_level": "0"}


def run_on_webgpu(
    file: Path, batches: Iterable[Sequence[Array]], reference: str, timeout: float
) -> WebGpuComparison:
    """Run a file on the WebGPU provider and on the CPU provider, and compare.

    Args:
        file: an ONNX file of any tool.
        batches: arrays in the order of the file's inputs.
        reference: this machine and its runtime, in words.
        timeout: seconds for one run of all batches.

    Raises:
        DataError: there is no batch, or one holds text.
        EmulationError: the provider is not installed; or a run fails, or takes longer.
        FileError: not an ONNX file.
    """
    with scratch_folder() as folder:
        inputs = new_folder(folder / "inputs")
        samples = write_inputs(inputs, batches)
        model = load(file)
        job = Job(file.absolute(), inputs, folder, len(samples), external_files(file))
        profile = folder / "profile"
        here, there, runtime = _run_both(job, model, folder / "plain", timeout, profile)
        counts = tallies(here, there, job.batches, range(len(model.graph.output)))
        rounds = any(n.op_type in _ROUNDING for n in model.graph.node)
        limit = ROUNDED_DB if rounds else FLOAT_DB
        outputs = tuple(
            _output(value.name, i, counts[i], here, there, job.batches)
            for i, value in enumerate(model.graph.output)
        )
        compared = WebGpuComparison(
            *(file.name, sum(samples), runtime, ADAPTER, reference, limit, outputs),
            *(placement(profile, job.batches), None),
        )
        if compared.agrees:
            return compared
        first, persists = _first(job, model, folder, timeout, limit)
        worst = min(o.sqnr_db for o in outputs if o.sqnr_db is not None)
        moved = rounds and first is None and (persists or worst >= _MOVED_DB)
        return replace(compared, first=first, codes_moved=moved)


def _run_both(
    job: Job, model: onnx.ModelProto, folder: Path, timeout: float, profile: Path | None = None
) -> tuple[Path, Path, str]:
    """Return the folders of outputs of the CPU and of the WebGPU provider, and the runtime."""
    here, there = new_folder(folder / "here"), new_folder(folder / "there")
    level_0 = onnx.ModelProto()
    level_0.CopyFrom(model)
    disable_input_rounding(level_0.graph)
    path = folder / "level-0.onnx"
    save(level_0, path)
    cpu = Job(path, job.inputs, here, job.batches, external_files(path), config=_LEVEL_0)
    run_jobs(None, [cpu], folder / "cpu-job", timeout)
    gpu = replace(job, outputs=there, providers=_PROVIDERS, profile=profile)
    return here, there, run_jobs(WEBGPU, [gpu], folder / "webgpu-job", timeout)


def _output(
    name: str, index: int, tally: Tally, here: Path, there: Path, batches: int
) -> ProviderOutput:
    rows = same = 0
    for batch in range(batches):
        one, other = (read_array(folder, batch, index) for folder in (here, there))
        if one.shape == other.shape and one.ndim in (2, 3) and one.shape[-1] > 1 and one.size:
            places = one.argmax(-1) == other.argmax(-1)
            rows, same = rows + places.size, same + int(np.sum(places))
    return ProviderOutput(name, tally.sqnr_db, rows, same)


def _first(
    job: Job, model: onnx.ModelProto, folder: Path, timeout: float, limit: float
) -> tuple[NodeDifference | None, bool]:
    """Return the first node that is wrong, on the first batch: every node's result is returned; and
    whether an output is below the limit then.

    A node is wrong whose result is below the limit. Where the file rounds activations, codes that
    move by one lower all that is behind them: there a node is wrong whose result is also
    `_LOSS_DB` below its worst input, and roundings, which run on the CPU provider, are right.
    The results are those of a changed file: nodes whose results are returned are not fused.
    """
    nodes = _computing(model)
    tensors = [CodeTensor(o, label(n), n.op_type, "") for n in nodes for o in n.output if o]
    probe = with_outputs(model, tensors)
    path = folder / "probe.onnx"
    save(probe, path)
    job = replace(job, model=path, batches=1, external=external_files(path))
    here, there, _ = _run_both(job, probe, folder / "probe", timeout)
    names = [o.name for o in probe.graph.output]
    counts = tallies(here, there, 1, range(len(names)))
    ratios = {name: counts[i].sqnr_db for i, name in enumerate(names)}
    rounds = limit == ROUNDED_DB
    ends = [ratios[value.name] for value in model.graph.output]
    persists = any(ratio is not None and ratio < limit for ratio in ends)
    for tensor, node in ((o, n) for n in nodes for o in n.output if o):
        ratio = ratios[tensor]
        if ratio is None or ratio >= (FLOAT_DB if rounds else limit):
            continue
        inputs = [db for i in node.input if (db := ratios.get(i)) is not None]
        worst = min(inputs, default=None)
        explained = worst is not None and ratio >= worst - _LOSS_DB
        if not rounds or not (explained or node.op_type in _ROUNDING):
            return NodeDifference(label(node), node.op_type, tensor, ratio, worst), persists
    return None, persists


def _computing(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose results depend on an input, in the order of the graph."""
    stored = {t.name for t in model.graph.initializer}
    varying = {i.name for i in model.graph.input} - stored
    nodes = []
    for node in model.graph.node:
        if varying.intersection(node.input):
            varying.update(node.output)
            nodes.append(node)
    return nodes
