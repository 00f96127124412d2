"""The simulation that estimates and judges, against files in their runtimes.

Where a file has less than 60 dB against the float network, the simulation has the same within
0.5 dB: for each kind of operator, in each runtime that is installed, at batch 1 and at the batch of
the calibration. Each mode has several networks.
"""

from collections.abc import Callable
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from qtool.api.conversion import quantize
from qtool.backends.formats import open_model
from qtool.backends.onnxruntime.session import VERSION
from qtool.core import graph as G
from qtool.core.errors import QtoolError
from qtool.core.sqnr import sqnr
from qtool.planning.input_rounding import insert_input_rounding
from qtool.planning.result_parts import refine_results
from tests.matrix.cells import MODES
from tests.matrix.networks import NETWORKS
from tests.needs import HAS_VNNI

TOLERANCE_DB, LIMIT_DB = 0.5, 60.0
SAMPLES, BATCH = 32, 16

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]
Cell = tuple[str, str, str]


def _onnxruntime(path: Path) -> Run:
    """One thread: several share the samples of a batch, and each rounds the states of an LSTM by
    the range of its own samples."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options)
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def _litert(path: Path) -> Run:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    session = open_model(path)
    return lambda x: session.run([x])[0]


def _openvino(path: Path) -> Run:
    ov = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.Core().compile_model(path, "CPU", settings)
    return lambda x: np.array(compiled(x)[0])


RUNTIMES: dict[str, tuple[str, Callable[[Path], Run]]] = {
    "onnxruntime": (".onnx", _onnxruntime),
    "tflite": (".tflite", _litert),
    "openvino": (".onnx", _openvino),
}
"""Target -> suffix of its files, and what opens them in its runtime."""

REFUSED: tuple[tuple[str, str, str, str], ...] = (
    # target, kind, mode, why
    ("openvino", "*", "dynamic", "no kernel"),
    ("openvino", "*", "weight-only-int?", "no kernel"),
    ("tflite", "*", "weight-only*", "no TFLite operator of qtool"),
    *(("tflite", kind, "*", "no TFLite operator of qtool") for kind in ("*lstm", "gru", "rnn")),
)
UNLIKE: tuple[tuple[str, str, str, str], ...] = (
    # target, kind, mode, why
    (
        "openvino",
        "softmax",
        "weight-only",
        "two layers with a softmax between them are one kernel, as in attention, in float",
    ),
)
"""Cells in which a runtime computes what the simulation does not."""


LAYERS = ("*conv*", "depthwise", "gemm", "softmax", "attention", "*lstm", "gru", "rnn", "embedding")
"""Networks that differ in their layers; others differ in what is in float outside of static."""


def cells() -> list[object]:
    """Return the cells: static of each network, two more modes of LAYERS, and one of others.

    What a target refuses of every network in a mode is in one cell.
    """
    parameters, refused = [], set[tuple[str, str]]()
    _, dynamic, *weight_only = MODES
    for turn, name in enumerate(NETWORKS):
        has_layers = any(fnmatch(name, pattern) for pattern in LAYERS)
        others = (dynamic, weight_only[turn % 3]) if has_layers else (MODES[1 + turn % 4],)
        for target, mode in product(RUNTIMES, ("static", *others)):
            cell = (target, name, mode)
            if mode != "static" and _reason(REFUSED, cell):
                if (target, mode) in refused:
                    continue
                refused.add((target, mode))
            reason = _reason(UNLIKE, cell)
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            parameters.append(pytest.param(*cell, id="-".join(cell), marks=marks))
    return parameters


def _reason(table: tuple[tuple[str, str, str, str], ...], cell: Cell) -> str | None:
    return next((why for *names, why in table if all(map(fnmatch, cell, names))), None)


@pytest.mark.parametrize(("target", "kind", "mode"), cells())
def test_simulation_and_file_are_equally_accurate(
    target: str, kind: str, mode: str, tmp_path: Path
) -> None:
    if mode == "weight-only-int2" and VERSION < (1, 31):
        pytest.skip("2-bit weights are tested with ONNX Runtime 1.31")
    if (target, mode) == ("openvino", "weight-only") and not HAS_VNNI:
        pytest.skip("OpenVINO computes with floats of stored weights on this processor")
    network, (suffix, opened) = NETWORKS[kind], RUNTIMES[target]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = network.make().eval()
    x, path = network.samples(SAMPLES), tmp_path / f"model{suffix}"
    if _reason(REFUSED, (target, kind, mode)) is not None:
        with pytest.raises(QtoolError):
            _quantized(module, x, target, mode).export(path, verify=False)
        return
    model = _quantized(module, x, target, mode)
    model.export(path, verify=False)
    simulation, runtime = G.clone(model.module), opened(path)
    insert_input_rounding(simulation, model.plan)
    refine_results(simulation, model.plan)
    for batch in (1, BATCH):
        parts = x.split(batch)
        with torch.no_grad():
            real = module(x).numpy()
            simulated = np.concatenate([simulation(part).numpy() for part in parts])
        file = np.concatenate([runtime(part.numpy()) for part in parts])
        _check(_decibels(real, simulated), _decibels(real, file), batch)


def _quantized(module: torch.nn.Module, x: torch.Tensor, target: str, mode: str) -> Any:
    return quantize(module, x.split(BATCH), target=target, mode=mode, accuracy="fast")


def _decibels(real: Array, quantized: Array) -> float:
    value = sqnr(real, quantized)
    return float("inf") if value is None else value


def _check(simulated: float, file: float, batch: int) -> None:
    figures = f"batch {batch}: {simulated:.2f} dB simulated, {file:.2f} dB in the runtime"
    assert abs(simulated - file) <= TOLERANCE_DB or min(simulated, file) >= LIMIT_DB, figures
