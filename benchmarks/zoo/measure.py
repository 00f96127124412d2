"""One network: calibrated, converted, exported and verified with defaults, and then measured."""

from __future__ import annotations

import resource
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import Network
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.backends.onnxruntime.session import run, session
from qtool.core import graph as G
from qtool.core.ops import macs
from qtool.evaluation.latency.interleaved_timing import time_files
from qtool.evaluation.latency.node_times import profile_nodes
from qtool.planning.plan import Execution
from qtool.verification import Verification

__all__ = ["Record", "measure"]

Arrays = list[np.ndarray[Any, Any]]
BATCHES, BATCH, HELD_OUT = 4, 4, 8
WEIGHTED = ("conv", "conv_transpose", "linear")
SHOWN = ("Conv", "Add", "Concat")  # whose float ones are counted
COSTLIEST = 5


@dataclass(frozen=True)
class Record:
    """What was found of one network.

    parameters, macs: of the float model, for one sample of the captured size. integer, moves,
    float_nodes: nodes of the plan that compute in integers (with those fused into them), move
    codes, and stay in float. reasons: (operator, reason, nodes) of the float ones, most frequent
    first. share, weighted_share: share of all MACs, and of those of layers with weights, in integer
    kernels. float_kernels: convolutions, adds and concats that the runtime runs in float. rewrites:
    (pass, times). sqnr_db: int8 against float in the runtime on held-out inputs, the worst output.
    identical, elements: output values equal to the integer engine's. float_steps: nodes whose
    float kernels the engine shares with the runtime. sizes: inputs of other dynamic sizes ran.
    convert, export: seconds, the latter with verification. mebibytes: peak of the process by then.
    float_ms, int8_ms, ratio: latency of one sample, one thread; ratio above 1 where int8 is faster.
    costliest: (node, float kernels, microseconds, int8 kernels, microseconds), where it is not.
    """

    network: str
    group: str
    family: str
    parameters: int
    macs: int
    integer: int
    moves: int
    float_nodes: int
    reasons: tuple[tuple[str, str, int], ...]
    share: float
    weighted_share: float
    float_kernels: dict[str, int]
    rewrites: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    sqnr_db: float
    identical: int
    elements: int
    float_steps: int
    parity: str
    sizes: bool
    convert: float
    export: float
    mebibytes: float
    float_ms: float
    int8_ms: float
    ratio: float
    costliest: tuple[tuple[str, str, float, str, float], ...]


def measure(name: str, network: Network, seconds: float) -> Record:
    """Everything of one network; `seconds` for its latency."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = [network.inputs(BATCH, generator) for _ in range(BATCHES)]
    held_out = network.inputs(HELD_OUT, generator)
    model = network.build().eval()
    _wake(model)
    _estimate_norms(model, data)
    with tempfile.TemporaryDirectory() as folder:
        file, plain = Path(folder) / "int8.onnx", Path(folder) / "float.onnx"
        start = time.perf_counter()
        captured = qtool.capture_model(model, data[0], dict(network.dynamic) or None)
        quantized = qtool.quantize(captured, data)
        converted = time.perf_counter()
        verified = quantized.export(file)
        exported = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert verified is not None
        captured.export_float(plain)
        files = (plain, file)
        one = _arrays({k: v[:1] for k, v in held_out.items()})
        latency = time_files(files, one, seconds=seconds)
        slower = latency.ratios[1].median < 1.0
        return Record(
            network=name,
            group=network.group,
            family=network.family,
            parameters=sum(p.numel() for p in model.parameters()),
            macs=sum(macs(n, BATCH) for n in G.calls(captured.graph.graph)),
            **_plan(quantized),
            **_audit(quantized, verified),
            notes=tuple(quantized.notes),
            sqnr_db=_sqnr(files, _arrays(held_out)),
            parity=str(verified.parity),
            sizes=_sizes(files, _arrays(network.other_sizes(held_out))),
            convert=converted - start,
            export=exported - converted,
            mebibytes=peak,
            float_ms=latency.models[0].median,
            int8_ms=latency.models[1].median,
            ratio=latency.ratios[1].median,
            costliest=_costliest(files, one) if slower else (),
        )


def _wake(model: nn.Module) -> None:
    """Layers that are initialised to give nothing, or next to nothing, would hide their error and
    that of all behind them: they get weights and scales as training leaves them."""
    for name, parameter in model.named_parameters():
        if name.endswith("layer_scale"):
            nn.init.constant_(parameter, 0.2)
        elif parameter.dim() > 1 and not parameter.any():
            nn.init.xavier_uniform_(parameter)


def _estimate_norms(model: nn.Module, data: Sequence[dict[str, torch.Tensor]]) -> None:
    """BatchNorm as if the model had been trained: with the statistics of its inputs, layer after
    layer. The untouched ones of a new model would let activations vanish or explode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    with torch.no_grad():
        for batch in data:
            model(**batch)
    model.eval()


def _plan(quantized: QuantizedModel) -> dict[str, Any]:
    forms = Counter(d.execution for d in quantized.plan.nodes)
    found = Counter(
        (d.op, d.reason) for d in quantized.plan.nodes if d.execution is Execution.FLOAT
    )
    return {
        "integer": forms[Execution.INTEGER] + forms[Execution.FUSED],
        "moves": forms[Execution.PASS],
        "float_nodes": forms[Execution.FLOAT],
        "reasons": tuple((*what, count) for what, count in found.most_common()),
        "rewrites": tuple((r.name, r.count) for r in quantized.plan.rewrites),
    }


def _audit(quantized: QuantizedModel, verified: Verification) -> dict[str, Any]:
    rows, exactness = verified.coverage.rows, verified.exactness
    assert exactness is not None
    kinds = {d.node: d.op for d in quantized.plan.nodes}
    weighted = [r for r in rows if kinds.get(r.name) in WEIGHTED]
    done = sum(r.macs for r in weighted if r.integer)
    in_float = Counter(r.op for r in rows if not r.integer)
    return {
        "share": verified.coverage.share,
        "weighted_share": done / sum(r.macs for r in weighted),
        "float_kernels": {op: in_float[op] for op in SHOWN if in_float[op]},
        "identical": exactness.identical,
        "elements": exactness.elements,
        "float_steps": exactness.float_steps,
    }


def _arrays(batch: dict[str, torch.Tensor]) -> Arrays:
    return [t.numpy() for t in batch.values()]


def _outputs(files: Sequence[Path], inputs: Arrays) -> list[Arrays]:
    return [run(session(f, threads=1), inputs) for f in files]


def _sqnr(files: Sequence[Path], inputs: Arrays) -> float:
    """Signal to quantization noise of the worst output, in dB."""

    def of(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
        signal, noise = np.square(a, dtype=np.float64).sum(), np.square(a - b, dtype=np.float64)
        return float(10 * np.log10(signal / max(noise.sum(), 1e-30)))

    return min(starmap(of, zip(*_outputs(files, inputs), strict=True)))


def _sizes(files: Sequence[Path], inputs: Arrays) -> bool:
    """Whether both files take these sizes, and give results of the same shapes."""
    a, b = _outputs(files, inputs)
    return [x.shape for x in a] == [y.shape for y in b]


def _costliest(files: Sequence[Path], inputs: Arrays) -> tuple[Any, ...]:
    """The nodes that lose most time in integers."""
    times = profile_nodes(files, inputs)
    lost = sorted(times, key=lambda t: t.microseconds[0] - t.microseconds[1])[:COSTLIEST]
    return tuple(
        (t.name, t.kernels[0], t.microseconds[0], t.kernels[1], t.microseconds[1]) for t in lost
    )
