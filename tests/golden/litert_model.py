"""Single-operator models in LiteRT's own schema, run by its reference kernels.

Needs the `golden` extra. A case that aborts the process is run in a child, which may die.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
}
ACTIVATIONS = {"none": 0, "relu": 1, "relu_n1_to_1": 2, "relu6": 3}


@dataclass(frozen=True)
class Quant:
    """Type and quantization of one tensor; scale and zero may be per channel along `axis`."""

    dtype: str
    scale: Any
    zero: Any = 0
    axis: int | None = None


@dataclass
class Net:
    """One LiteRT graph under construction; methods return tensor numbers."""

    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])
    operators: list[Any] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def tensor(self, shape: Any, quant: Quant | str, data: Any = None) -> int:
        t = schema.TensorT()
        t.shape, t.name = list(shape), f"t{len(self.tensors)}".encode()
        t.type = _TYPES[quant if isinstance(quant, str) else quant.dtype]
        if isinstance(quant, Quant):
            q = schema.QuantizationParametersT()
            scales = np.atleast_1d(np.asarray(quant.scale, np.float32))
            q.scale = scales.tolist()
            q.zeroPoint = np.broadcast_to(np.asarray(quant.zero, np.int64), scales.shape).tolist()
            q.quantizedDimension = quant.axis or 0
            t.quantization = q
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            t.buffer = len(self.buffers)
            self.buffers.append(buffer)
        self.tensors.append(t)
        return len(self.tensors) - 1

    def feed(self, array: np.ndarray, quant: Quant | str) -> int:
        self.inputs.append(self.tensor(array.shape, quant))
        return self.inputs[-1]

    def op(self, name: str, inputs: list[int], output: int, options: str = "", **attrs: Any) -> int:
        node = schema.OperatorT()
        node.inputs, node.outputs = inputs, [output]
        node.opcodeIndex = len(self.codes)
        self.codes.append(getattr(schema.BuiltinOperator, name))
        if options:
            node.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            node.builtinOptions = getattr(schema, options + "T")()
            for key, value in attrs.items():
                assert hasattr(node.builtinOptions, key), key
                setattr(node.builtinOptions, key, value)
        self.operators.append(node)
        return output

    def serialize(self, output: int) -> bytes:
        model, graph = schema.ModelT(), schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, [output]
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        model.operatorCodes = []
        for code in self.codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode = code, min(code, 127)
            entry.version = 1
            model.operatorCodes.append(entry)
        builder = flatbuffers.Builder(4096)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _invoke(model: bytes, feeds: list[np.ndarray]) -> np.ndarray:
    interpreter = Interpreter(
        model_content=model, num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def _child(pipe: Any, model: bytes, feeds: list[np.ndarray]) -> None:
    try:
        pipe.send(_invoke(model, feeds))
    except (RuntimeError, ValueError):
        pipe.send(None)


def run(model: bytes, feeds: list[np.ndarray]) -> np.ndarray | None:
    """The reference kernels' output; None where they refuse the model or abort."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(theirs, model, feeds)
    )
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None
    finally:
        process.join()
