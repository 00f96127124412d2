"""The tensors of a file that a self-test checks, and their values in ONNX Runtime.

The outputs of QuantizeLinear can be made graph outputs without changing which kernels run: a fused
integer kernel ends in one. In the QOperator format they are the outputs of the integer operators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from qtool.backends.onnx.graph import Value
from qtool.backends.onnx.qdq_tensors import QdqTensors
from qtool.backends.onnx.reading import OnnxModel, input_at, is_constant, name_of
from qtool.backends.onnxruntime.session import run, session
from qtool.core.types import Array

_ON_CODES = ("QuantizeLinear", "QLinear", "QGemm")


def observed_tensors(file: OnnxModel) -> tuple[str, ...]:
    """Return the names of all code tensors in graph order, then those of the float outputs.

    A graph output that dequantizes one of these tensors is left out. So are codes that ONNX Runtime
    turns from int8 into uint8: as outputs they would stay int8, and other kernels would run.
    """
    graph = QdqTensors(file)
    codes = {
        name_of(node.outputs[0])
        for node in file.nodes
        if node.op_type.startswith(_ON_CODES)
        and not all(map(is_constant, node.inputs))
        and not is_constant(input_at(node, 0))
        and not (node.op_type == "QuantizeLinear" and graph.becomes_uint8(node))
    }
    outputs = (name_of(v) for v in file.outputs if _codes_behind(v) not in codes)
    ordered = (name_of(n.outputs[0]) for n in file.nodes if name_of(n.outputs[0]) in codes)
    return tuple(dict.fromkeys((*ordered, *outputs)))


def _codes_behind(value: Value) -> str | None:
    maker = value.producer
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    return name_of(maker.inputs[0])


class TensorReader:
    """A session of a file that returns all observed tensors.

    Args:
        path: the file.
        tensors: names of the tensors to return.
        outputs: names of the file's outputs.

    Raises:
        VerificationError: the runtime does not load the file.
    """

    def __init__(self, path: str | Path, tensors: Sequence[str], outputs: Sequence[str]) -> None:
        extra = [name for name in tensors if name not in outputs]
        self.tensors = tensors
        self._session = session(path, threads=1, once=True, outputs=extra)
        self._names = [o.name for o in self._session.get_outputs()]

    def values(self, inputs: Sequence[Array]) -> Iterator[Array]:
        """Return the observed tensors of one run, in the order of `tensors`.

        Raises:
            VerificationError: the runtime fails on these inputs.
        """
        values = dict(zip(self._names, run(self._session, list(inputs)), strict=True))
        return (values[name] for name in self.tensors)


_DIGITS = 16


def exact_digests(kinds: str, runs: Sequence[Sequence[Array]], groups: int) -> tuple[str, ...]:
    """Return digests of groups of consecutive exact tensors.

    Args:
        kinds: see `SelfTest`.
        runs: the observed tensors of each run.
        groups: number of digests; if the division is not even, the first ones have one tensor
            more.
    """
    exact = [i for i, kind in enumerate(kinds) if kind == "e"]
    parts = np.array_split(np.array(exact, np.int64), groups) if groups else []
    return tuple(_digest([run[i] for i in part.tolist() for run in runs]) for part in parts)


def _digest(arrays: Sequence[Array]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:_DIGITS]
