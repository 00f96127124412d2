"""Independent measurement of a file: plain runtimes and numpy, no code of qtool."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

__all__ = [
    "Runner",
    "agreement",
    "agreement_of",
    "by_input",
    "feed",
    "files_size",
    "integer_share",
    "open_file",
    "session",
    "sqnr",
    "transposed",
]

Arrays = Mapping[str, np.ndarray]
Outputs = Mapping[str, np.ndarray]
Runner = Callable[[Arrays], Outputs]
CAP = 200.0  # dB of an output without error
LAYOUTS = ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1))


def open_file(path: Path) -> Runner:
    """A file in ONNX Runtime or LiteRT, one thread: inputs by name -> outputs by name."""
    return _litert(path) if path.suffix == ".tflite" else _onnx(path)


def session(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A file, or its bytes, in ONNX Runtime, which prints errors alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def _onnx(path: Path) -> Runner:
    runtime = session(path)
    names = [i.name for i in runtime.get_inputs()]
    outputs = [o.name for o in runtime.get_outputs()]

    def run(arrays: Arrays) -> Outputs:
        return dict(zip(outputs, runtime.run(None, by_input(names, arrays)), strict=True))

    return run


def by_input(names: Sequence[str], arrays: Arrays) -> dict[str, np.ndarray]:
    """Arrays by the names of a file's inputs; by place where names differ."""
    if set(names) <= set(arrays):
        return {n: arrays[n] for n in names}
    return dict(zip(names, arrays.values(), strict=True))


def _litert(path: Path) -> Runner:
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(str(path), num_threads=1)

    def run(arrays: Arrays) -> Outputs:
        feed(model, arrays)
        model.invoke()
        return {d["name"]: model.get_tensor(d["index"]) for d in model.get_output_details()}

    return run


def feed(model: Any, arrays: Arrays) -> None:
    """Give an interpreter of LiteRT its inputs, in the layout of the file."""
    inputs = model.get_input_details()
    values = by_input([d["name"] for d in inputs], arrays).values()
    fed = [transposed(v, tuple(d["shape_signature"])) for v, d in zip(values, inputs, strict=True)]
    for detail, value in zip(inputs, fed, strict=True):
        model.resize_tensor_input(detail["index"], value.shape)
    model.allocate_tensors()
    for detail, value in zip(inputs, fed, strict=True):
        model.set_tensor(detail["index"], value.astype(detail["dtype"]))


def transposed(value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The value in the layout whose sizes are those of `shape` (-1: any)."""

    def fits(array: np.ndarray) -> bool:
        return all(b in (-1, a) for a, b in zip(array.shape[1:], shape[1:], strict=True))

    if fits(value):
        return value
    for axes in LAYOUTS:
        if len(axes) == value.ndim and fits(value.transpose(axes)):
            return np.ascontiguousarray(value.transpose(axes))
    raise ValueError(f"an array of {value.shape} fits no layout of {tuple(shape)}")


def _pairs(plain: Outputs, coded: Outputs) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Outputs of float type by the names of the float file; by place where names differ."""
    by_name = set(plain) <= set(coded)
    rest = iter(coded.values())
    for name, real in plain.items():
        other = coded[name] if by_name else next(rest)
        if real.dtype.kind == "f":
            yield name, real, transposed(other, real.shape)


def sqnr(
    pairs: Sequence[tuple[Outputs, Outputs]], *, whole: bool = False
) -> dict[str, dict[str, float]]:
    """SQNR over samples, of each output and of all together ("together"), in dB.

    Args:
        pairs: outputs of the float model and of the file, of each batch.
        whole: a batch is one sample.
    """
    power: dict[str, list[np.ndarray]] = {}
    for plain, coded in pairs:
        both = []
        for name, real, other in _pairs(plain, coded):
            real, other = real.astype(np.float64), other.astype(np.float64)
            rows = 1 if whole or not real.ndim else len(real)
            signal, noise = (np.square(x).reshape(rows, -1).sum(1) for x in (real, real - other))
            both.append(np.stack([signal, noise]))
            power.setdefault(name, []).append(both[-1])
        power.setdefault("together", []).append(np.sum(both, 0))
    return {name: _figures(np.concatenate(rows, 1)) for name, rows in power.items()}


def _figures(power: np.ndarray) -> dict[str, float]:
    """Of signal and noise [2, samples]."""
    each = np.sort([_decibels(s, n) for s, n in power.T if s > 0 or n > 0] or [CAP])
    half = 0.98 * np.sqrt(len(each))  # 1.96 standard deviations of the rank of the median
    low, high = (int(np.clip(len(each) / 2 + d, 0, len(each) - 1)) for d in (-half, half))
    return {
        "samples": power.shape[1],
        "median_db": float(np.median(each)),
        "low_db": float(each[low]),
        "high_db": float(each[high]),
        "pooled_db": _decibels(*power.sum(1)),
        "worst_db": float(each[0]),
        "worst_share": float(power[1].max() / max(power[1].sum(), 1e-300)),
    }


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return CAP
    return float(np.clip(10 * np.log10(max(signal, 1e-300) / noise), -CAP, CAP))


def agreement(pairs: Sequence[tuple[Outputs, Outputs]], yardstick: str) -> float | None:
    """Mean over samples of what would be the same for a user, of the first output; None without a
    yardstick."""
    if not yardstick:
        return None
    kind, _, number = yardstick.partition(" ")
    rows = []
    for plain, coded in pairs:
        _, a, b = next(_pairs(plain, coded))
        if kind == "argmax":
            same: Any = a.argmax(int(number)) == b.argmax(int(number))
        elif kind == "threshold":
            same = (a > float(number)) == (b > float(number))
        else:
            a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (a, b))
            same = (a * b).sum(1) / np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
        rows.append(np.asarray(same, np.float64).reshape(len(a), -1).mean(1))
    return float(np.concatenate(rows).mean())


def agreement_of(
    pairs: Sequence[tuple[Outputs, Outputs]], place: int, kind: str, threshold: float
) -> float | None:
    """What a printed agreement says of the output at a place: share of equal best classes ("class",
    "token", "pixel"), F1 of values above a threshold, mean cosine of vectors, Spearman's
    rank correlation ("order"); None of other kinds."""
    both = [next(itertools.islice(_pairs(*pair), place, None))[1:] for pair in pairs]
    if kind in ("class", "token", "pixel"):
        last = kind == "token" or np.allclose(both[0][0].sum(-1), 1, atol=1e-3)
        axis = -1 if last else 1  # shares of classes may be last in images, too
        equal = [(a.argmax(axis) == b.argmax(axis)).ravel() for a, b in both]
        return float(np.concatenate(equal).mean())
    if kind == "cosine":
        return float(np.concatenate([_cosines(a, b) for a, b in both]).mean())
    x, y = (np.concatenate([each[i].ravel() for each in both]) for i in (0, 1))
    if kind == "threshold":
        above, other = x > threshold, y > threshold
        return 2 * float((above & other).sum()) / max(float(above.sum() + other.sum()), 1.0)
    if kind == "order":
        from scipy.stats import spearmanr

        return float(spearmanr(x, y).statistic)
    return None


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = (v.reshape(-1, v.shape[-1]).astype(np.float64) for v in (a, b))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(1) / np.maximum(norms, 1e-300)


def files_size(folder: Path, before: set[str]) -> int:
    """Bytes of model files that are new in a folder, external data among them."""
    new = [p for p in folder.iterdir() if p.name not in before]
    return sum(p.stat().st_size for p in new if p.suffix in (".onnx", ".tflite", ".data"))


INTEGER = {
    *("QLinearConv", "ConvInteger", "QGemm", "QLinearMatMul", "MatMulInteger"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM"),
}
CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "QLinearConv": 3, "ConvInteger": 1}
PRODUCTS = {
    *("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "QGemm", "QLinearMatMul", "MatMulInteger"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits"),
}
RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
UNCOUNTED = {"Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention", "Einsum"}


def integer_share(path: Path, arrays: Arrays) -> float | None:
    """Share of multiply-accumulates in integer kernels, counted from the shapes in a profile of
    the runtime; None where a kernel has work that is not counted here."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    # weights that a kernel packs for itself would not be among the shapes
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.profile_file_prefix = str(path.with_suffix(".profile"))
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    session.run(None, by_input(names, arrays))
    events = json.loads(Path(session.end_profiling()).read_text())
    total = integer = 0.0
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "Node" and "output_type_shape" in args:
            op = args["op_name"]
            if op in UNCOUNTED:
                return None
            work = _macs(op, _shapes(args["input_type_shape"]), _shapes(args["output_type_shape"]))
            total += work
            integer += work * (op in INTEGER)
    return integer / total if total else None


def _shapes(described: Sequence[Mapping[str, list[int]]]) -> list[list[int]]:
    return list(itertools.chain.from_iterable(d.values() for d in described))


def _macs(op: str, inputs: list[list[int]], outputs: list[list[int]]) -> float:
    size = [float(np.prod(s)) for s in inputs]
    out = float(np.prod(outputs[0])) if outputs else 0.0
    if op in CONVOLUTIONS:
        weight = CONVOLUTIONS[op]
        return out * size[weight] / inputs[weight][0]
    if op == "ConvTranspose":
        return size[0] * size[1] / inputs[1][0]
    if op in PRODUCTS:
        return out * inputs[0][-1]
    if op in RECURRENT:
        return inputs[0][0] * inputs[0][1] * (size[1] + size[2])
    return 0.0
