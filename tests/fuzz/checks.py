"""Random networks and graphs through the whole of qtool, next to torch and ONNX Runtime."""

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

import qtool
from qtool.backends.onnx.subgraph import tensor_of
from qtool.core.atomic import scratch_folder
from qtool.core.errors import QtoolError
from qtool.frontends.captured_model import Captured, capture_model
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.fuzz.graph import Graph
from tests.fuzz.network import Network
from tests.fuzz.oracle import Verdict, _leaves, check_file, judged, rounded_alike
from tests.fuzz.tolerance import NEAR, distance, float_noise

CALIBRATED, OTHERS = 32, (24, 1)  # samples of a batch of a network; sizes of new ones
NETWORK_BATCHES, GRAPH_BATCHES = 2, 3
Arrays = Mapping[str, np.ndarray[Any, Any]]
Inputs = tuple[torch.Tensor, ...]


def check_network(network: Network) -> Verdict:
    """Convert a network, and look at everything that comes out."""
    return judged(lambda: _network_verdict(network))


def check_graph(graph: Graph) -> Verdict:
    """Read and convert a graph, and look at everything that comes out."""
    return judged(lambda: _graph_verdict(graph))


def _capture_verdict(
    captured: Captured,
    model: nn.Module,
    batch: Inputs,
    truth: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
) -> Verdict | None:
    """What is wrong with outputs of the captured graph, next to those of the model."""
    apart = max(distance(a, b) for a, b in zip(truth, found, strict=True))
    near = apart <= NEAR or apart <= float_noise(model, batch, {})
    if near or rounded_alike(captured.graph.module, batch, truth, found):
        return None
    return Verdict("capture", f"{apart:.1e} of the range at batch {len(batch[0])}")


def _network_verdict(network: Network) -> Verdict:
    model = network.module()
    data = [network.batch(CALIBRATED, i + 1) for i in range(NETWORK_BATCHES)]
    new, truths = _truths(model, [network.batch(n, 50 + n) for n in OTHERS])
    settings = {k: v for k, v in network.settings.items() if k != "format"}
    form = network.settings.get("format", "qdq")
    captured = capture_model(model, data[0])
    for batch, truth in zip(new, truths, strict=True):
        with torch.no_grad():
            found = _leaves(captured.graph.module(*batch))
        if wrong := _capture_verdict(captured, model, batch, truth, found):
            return wrong
    quantized = qtool.quantize(captured, data, **settings)
    try:
        return check_file(quantized, new, truths, form)
    except QtoolError as error:
        if form != "qdq" or type(error).__name__ != "VerificationError":
            raise
        return Verdict("refused", f"OWN FILE VerificationError: {error}")


def _truths(model: nn.Module, batches: Sequence[Inputs]) -> tuple[list[Inputs], list[Inputs]]:
    """Batches that the model itself takes (a norm refuses a single value), and its outputs."""
    taken, truths = [], []
    for batch in batches:
        with torch.no_grad(), suppress(RuntimeError, ValueError):
            truths.append(tuple(t.clone() for t in _leaves(model(*(x.clone() for x in batch)))))
            taken.append(batch)
    return taken, truths


def _graph_verdict(graph: Graph) -> Verdict:
    model = graph.model()
    open_ = any("N" in shape for _, _, shape in graph.inputs)
    data = [graph.data(graph.batch, i + 1) for i in range(GRAPH_BATCHES)]
    new = [graph.data(n, 50 + n) for n in ((24, 3) if open_ else (graph.batch,))]
    truths = [_truth(model, arrays) for arrays in new]
    first = _truth(model, data[0])
    with scratch_folder() as folder, redirect_stderr(io.StringIO()):
        file = folder / "case.onnx"
        file.write_bytes(model.SerializeToString())
        try:
            verdict = _file_verdict(graph, file, data, new, truths)
        except QtoolError as error:
            if first is None:
                return Verdict("invalid", str(error).removeprefix(f"{file}: "))
            raise type(error)(str(error).replace(str(file), "FILE")) from error
    return Verdict("taken", verdict.kind) if first is None and not verdict.bad else verdict


def _file_verdict(graph: Graph, file: Any, data: Any, new: Any, truths: Any) -> Verdict:
    module = load_onnx(file)
    names = list(module.inputs)
    batches = [{n: tensor_of(a[n]) for n in names} for a in data]
    captured = capture_model(module, batches[0])
    pairs = []
    for arrays, truth in zip(new, truths, strict=True):
        if not captured.graph.any_batch_size and len(arrays[names[0]]) != graph.batch:
            continue  # what the file leaves open runs with the sizes of the example alone
        batch = tuple(tensor_of(arrays[n]) for n in names)
        if truth is None:  # the runtime itself does not take this number of samples
            continue
        with torch.no_grad():
            found = _leaves(captured.graph.module(*batch))
        right = [tensor_of(a) for a in truth]
        found = [module.as_tensor(n, f) for n, f in zip(module.outputs, found, strict=True)]
        if wrong := _capture_verdict(captured, captured.graph.module, batch, right, found):
            return wrong
        right = [module.as_tensor(n, r) for n, r in zip(module.outputs, right, strict=True)]
        pairs.append((batch, right))
    quantized = qtool.quantize(captured, batches, **graph.settings)
    return check_file(quantized, [b for b, _ in pairs], [t for _, t in pairs])


def _truth(model: Any, arrays: Arrays) -> list[Any] | None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(arrays)))
    except Exception:  # noqa: BLE001  # whatever the runtime raises
        return None
