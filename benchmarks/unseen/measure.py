"""One network: converted and verified with defaults, then measured against itself in float."""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import Batch, Network
from torch import nn
from torch.utils import _pytree as pytree

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.evaluation.speedup import measure_speedup
from qtool.frontends.onnx import load_onnx
from qtool.verification import Verification

__all__ = ["Record", "estimate_norms", "measure", "wake"]

Arrays = list[np.ndarray[Any, Any]]
BATCHES, BATCH, HELD_OUT = 3, 4, 6
WEIGHTED = ("conv", "conv_transpose", "linear", "lstm", "gru", "rnn")
SHOWN = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Concat", "LSTM", "GRU", "Einsum")
NO_NOISE = 999.0


@dataclass
class Record:
    """What was found of one network, in the order in which it is found.

    outcome: "ok"; "torch.onnx fails", where there is no ONNX file to begin with; "refused", a
    sentence; "wrong", a file that is not what was planned; "traceback". error: the sentence.
    parameters: of the float model. seconds: capture to verification. share, weighted_share: of
    all MACs, and of those of layers with weights, in integer kernels. in_float: kernels that the
    runtime runs in float. identical, elements: outputs equal to the integer engine's. said: notes
    and warnings of the conversion and of the file. names: of the outputs. sqnr: dB of each output
    against the eager float model on held-out inputs. bf16: the same of the network in bfloat16
    (None where torch cannot run it). other: "yes", or what goes wrong at another size. sqnr_other:
    dB of the worst output there. ratio: float latency over int8, one sample, one thread.
    """

    outcome: str = "traceback"
    error: str = ""
    parameters: int = 0
    seconds: float = 0.0
    share: float = 0.0
    weighted_share: float = 0.0
    in_float: dict[str, int] = field(default_factory=dict)
    identical: int = 0
    elements: int = 0
    said: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    sqnr: tuple[float | None, ...] = ()
    bf16: tuple[float | None, ...] | None = None
    other: str = ""
    sqnr_other: float | None = None
    ratio: float | None = None


def measure(network: Network, seconds: float) -> Record:
    """Everything of one network; `seconds` for its latency."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = [network.inputs(BATCH, generator) for _ in range(BATCHES)]
    held_out = network.inputs(BATCH if network.fixed else HELD_OUT, generator)
    model = network.build().eval()
    if isinstance(model, nn.Sequential):  # which calls it so
        data, held_out = (
            [{"input": t} for b in each for t in b.values()] for each in (data, [held_out])
        )
        held_out = held_out[0]
    if not network.file:
        wake(model)
        estimate_norms(model, data)
    record = Record(parameters=sum(p.numel() for p in model.parameters()))
    with tempfile.TemporaryDirectory() as folder:
        try:
            given = _given(network, model, data[0], Path(folder) / "float.onnx")
        except Exception as error:  # noqa: BLE001  # torch.onnx may raise anything
            record.outcome, record.error = "torch.onnx fails", _sentence(error)
            return record
        file = Path(folder) / "int8.onnx"
        _convert(record, network, (given, data), file, seconds)
        if record.outcome == "ok":
            _judge(record, network, (model, given), held_out, file)
    return record


class ByPlace(nn.Module):
    """A network whose inputs are given by place, as the older exporter gives them."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def _given(network: Network, model: nn.Module, example: Batch, file: Path) -> nn.Module:
    """What qtool is given: the module, or an ONNX file read."""
    if network.file:
        return load_onnx(network.file)
    if not network.exporter:
        return model
    dims = {n: network.dynamic.get(n, {0: "batch"}) for n, t in example.items() if t.dim()}
    options: dict[str, Any] = {"input_names": list(example), "opset_version": network.opset}
    if network.exporter == "dynamo":
        shapes = {n: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for n, axes in dims.items()}
        options |= {"dynamo": True, "dynamic_shapes": {n: shapes.get(n) for n in example}}
    else:
        options |= {"dynamo": False, "dynamic_axes": dims}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if network.exporter == "dynamo":
            torch.onnx.export(model, (), str(file), kwargs=example, verbose=False, **options)
        else:
            torch.onnx.export(
                ByPlace(model, list(example)), tuple(example.values()), str(file), **options
            )
    return load_onnx(file)


def _convert(
    record: Record,
    network: Network,
    given: tuple[nn.Module, Sequence[Batch]],
    file: Path,
    seconds: float,
) -> None:
    """Conversion with verification; whatever is raised is the record's outcome."""
    start = time.perf_counter()
    model, data = given
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            dynamic = dict(network.dynamic) or None
            captured = qtool.capture_model(model, data[0], dynamic)
            quantized = qtool.quantize(captured, data)
            verified = quantized.export(file)
        except qtool.VerificationError as error:
            record.outcome, record.error = "wrong", _sentence(error)
            return
        except qtool.QtoolError as error:
            record.outcome, record.error = "refused", _sentence(error)
            return
        except Exception as error:
            record.error = _sentence(error)
            raise
        finally:
            record.seconds = time.perf_counter() - start
        assert verified is not None
        record.outcome = "ok"
        _audit(record, quantized, verified)
        speed = measure_speedup(quantized, file, seconds=seconds) if seconds else None
    said = [*(f"note: {n}" for n in quantized.notes), *str(verified).splitlines()]
    if speed is not None:
        record.ratio = speed.ratio
        said += [w] if (w := speed.warning()) else []
    mine = [str(w.message) for w in caught if "qtool" in str(w.filename)]
    record.said = (*said, *mine)


def _audit(record: Record, quantized: Any, verified: Verification) -> None:
    rows, exactness = verified.coverage.rows, verified.exactness
    assert exactness is not None
    kinds = {d.node: d.op for d in quantized.plan.nodes}
    weighted = [r for r in rows if kinds.get(r.name) in WEIGHTED]
    total = sum(r.macs for r in weighted)
    record.share = verified.coverage.share
    record.weighted_share = sum(r.macs for r in weighted if r.integer) / total if total else 1.0
    found = Counter(r.op for r in rows if not r.integer)
    record.in_float = {op: found[op] for op in SHOWN if found[op]}
    record.identical, record.elements = exactness.identical, exactness.elements
    record.names = tuple(quantized.graph.outputs)


def _judge(
    record: Record, network: Network, models: tuple[nn.Module, nn.Module], batch: Batch, file: Path
) -> None:
    """SQNR of each output, beside bfloat16, and whether another size runs."""
    model = models[1] if network.file else models[0]
    loaded = session(file, threads=1)
    real, coded = _eager(model, batch), _run(loaded, batch)
    record.sqnr = tuple(_decibels(a, b) for a, b in zip(real, coded, strict=True))
    record.bf16 = None if network.file else _in_bfloat16(model, batch, real)
    if network.file:
        record.other = "-"
        return
    small = network.other_sizes(batch)
    try:
        real, coded = _eager(model, small), _run(loaded, small)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is this network's
        record.other = _sentence(error)
        return
    same = [a.shape for a in real] == [b.shape for b in coded]
    record.other = "yes" if same else "other shapes"
    if same:
        found = [_decibels(a, b) for a, b in zip(real, coded, strict=True)]
        record.sqnr_other = min((db for db in found if db is not None), default=None)


def _run(loaded: Any, batch: Batch) -> Arrays:
    """Of the file; what it was found not to depend on it does not take."""
    return run(loaded, [t.numpy() for t in pytree.tree_leaves(batch)])


def _eager(model: nn.Module, batch: Batch) -> Arrays:
    given = {k: copy.deepcopy(v) for k, v in batch.items()}  # some write to them
    with torch.no_grad():
        named = all(name.isidentifier() for name in given)  # not of every ONNX file
        found = model(**given) if named else model(*given.values())
    return [t.detach().float().numpy() for t in pytree.tree_leaves(found) if _is_tensor(t)]


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _in_bfloat16(model: nn.Module, batch: Batch, real: Arrays) -> tuple[float | None, ...] | None:
    try:
        low = pytree.tree_map(
            lambda t: t.bfloat16() if _is_tensor(t) and t.is_floating_point() else t, dict(batch)
        )
        found = _eager(copy.deepcopy(model).bfloat16(), low)
    except Exception:  # noqa: BLE001  # no kernel in bfloat16, or a type written out in the model
        return None
    return tuple(_decibels(a, b) for a, b in zip(real, found, strict=True))


def _decibels(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float | None:
    """Signal to noise; None where an output holds integers or no finite value."""
    if a.shape != b.shape or not a.size:
        return None
    real, off = a.astype(np.float64), a.astype(np.float64) - b.astype(np.float64)
    good = np.isfinite(real) & np.isfinite(off)
    signal, lost = np.square(real[good]).sum(), np.square(off[good]).sum()
    if lost == 0.0:
        return NO_NOISE
    return float(10 * np.log10(max(signal, 1e-30) / lost))


def wake(model: nn.Module) -> None:
    """Layers that are initialised to give nothing would hide their error and that of all behind
    them: they get weights and scales as training leaves them."""
    for name, parameter in model.named_parameters():
        if name.endswith(("layer_scale", "gamma", "skip_gain", "ls1", "ls2", "lambda1")):
            if parameter.abs().max() < 0.1:
                nn.init.constant_(parameter, 0.2)
        elif parameter.dim() > 1 and not parameter.any():
            nn.init.xavier_uniform_(parameter)


def estimate_norms(model: nn.Module, data: Sequence[Batch]) -> None:
    """BatchNorm as if the model had been trained: with the statistics of its inputs, layer after
    layer."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [m for m in norms if m.track_running_stats]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    if norms:
        for batch in data:
            _eager(model, batch)
    model.eval()


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"
