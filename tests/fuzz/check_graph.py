"""A random ONNX graph through the whole of qtool, beside ONNX Runtime."""

import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import torch

import qtool
from qtool.backends.onnx.subgraph import tensor_of
from qtool.core.atomic import scratch_folder
from qtool.core.errors import QtoolError
from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx import load_onnx
from tests.fuzz.draw_graphs import opened
from tests.fuzz.graph import Graph
from tests.fuzz.oracle import Verdict, _leaves, check_file, judged, rounded_alike
from tests.fuzz.tolerance import NEAR, distance, float_noise

SEEN = 3
Arrays = Mapping[str, np.ndarray[Any, Any]]


def check_graph(graph: Graph) -> Verdict:
    """Reads, converts, and looks at everything that comes out."""
    return judged(lambda: _checked(graph))


def _checked(graph: Graph) -> Verdict:
    model = graph.model()
    open_ = any("N" in shape for _, _, shape in graph.inputs)
    data = [graph.data(graph.batch, i + 1) for i in range(SEEN)]
    new = [graph.data(n, 50 + n) for n in ((24, 3) if open_ else (graph.batch,))]
    truths = [_truth(model, arrays) for arrays in new]
    first = _truth(model, data[0])
    with scratch_folder() as folder, redirect_stderr(io.StringIO()):
        file = folder / "case.onnx"
        file.write_bytes(model.SerializeToString())
        try:
            found = _taken(graph, file, data, new, truths)
        except QtoolError as error:
            if first is None:
                return Verdict("invalid", str(error).removeprefix(f"{file}: "))
            raise type(error)(str(error).replace(str(file), "FILE")) from error
    return Verdict("taken", found.kind) if first is None and not found.bad else found


def _taken(graph: Graph, file: Any, data: Any, new: Any, truths: Any) -> Verdict:
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
        given = [module.as_tensor(n, f) for n, f in zip(module.outputs, found, strict=True)]
        apart = max(distance(a, b) for a, b in zip(right, given, strict=True))
        near = apart <= NEAR or apart <= float_noise(captured.graph.module, batch, {})
        if not near and not rounded_alike(captured.graph.module, batch, right, given):
            return Verdict("capture", f"{apart:.1e} of the range at batch {len(batch[0])}")
        pairs.append(
            (batch, [module.as_tensor(n, r) for n, r in zip(module.outputs, right, strict=True)])
        )
    quantized = qtool.quantize(captured, batches, **graph.settings)
    return check_file(quantized, [b for b, _ in pairs], [t for _, t in pairs])


def _truth(model: Any, arrays: Arrays) -> list[Any] | None:
    try:
        return list(opened(model).run(None, dict(arrays)))
    except Exception:  # noqa: BLE001  # whatever the runtime raises
        return None
