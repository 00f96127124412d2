"""The tensors of a file that a self-test looks at, and their values in ONNX Runtime.

The outputs of QuantizeLinear can be given out without changing which kernels run: a fused integer
kernel ends in one. In files of the QOperator format they are the outputs of the integer operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from qtool.backends.onnx.reading import OnnxModel, input_at, is_constant, name_of
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.backends.onnxruntime.session import run, session
from qtool.core.types import Array

_ON_CODES = ("QuantizeLinear", "QLinear", "QGemm")


def observed_tensors(file: OnnxModel) -> tuple[str, ...]:
    """Names of code tensors in graph order, then outputs of the graph that are not one of them
    dequantized.

    Codes that ONNX Runtime turns from int8 into uint8 are left out: asked for, they would stay
    int8, and other kernels would run.
    """
    graph = QdqGraph(file)
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


def _codes_behind(value: ir.Value) -> str | None:
    maker = value.producer()
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    return name_of(maker.inputs[0])


class TensorReader:
    """A file in ONNX Runtime, that gives out all observed tensors. One thread: sums in float depend
    on their number.

    Raises:
        VerificationError: the runtime does not load the file.
    """

    def __init__(
        self,
        path: str | Path,
        tensors: Sequence[str],
        outputs: Sequence[str],
        optimise: bool = True,
    ) -> None:
        more = [name for name in tensors if name not in outputs]
        self.tensors = tensors
        self._session = session(path, optimise, threads=1, once=True, outputs=more)
        self._names = [o.name for o in self._session.get_outputs()]

    def values(self, inputs: Sequence[Array]) -> Iterator[Array]:
        """The observed tensors of one run, in their order.

        Raises:
            VerificationError: the runtime fails on these inputs.
        """
        found = dict(zip(self._names, run(self._session, list(inputs)), strict=True))
        return (found[name] for name in self.tensors)
