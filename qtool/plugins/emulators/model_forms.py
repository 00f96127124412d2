"""The models of a comparison: the file with its codes as outputs, in the form of each family.

ONNX Runtime on x86 and WebAssembly turns pairs of int8 QuantizeLinear and DequantizeLinear into
uint8 (qdq_s8_to_u8.cc), unless another node reads the codes. So in a model that returns such codes
they are uint8 from the start; on ARM they stay int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool.backends.onnx.qdq_tensors import QdqTensors
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.storage import save
from qtool.core.types import Array
from qtool.plugins.emulators.code_probes import CodeTensor, with_code_inputs, with_outputs
from qtool.plugins.emulators.jobs import Job, link_array, read_array, write_array


def int8_taken_for_uint8(file: Path) -> frozenset[str]:
    """Return the tensors of int8 codes that the runtime turns into uint8 on x86."""
    reading = OnnxModel.of(file)
    graph = QdqTensors(reading)
    nodes = (n for n in reading.nodes if n.op_type == "QuantizeLinear" and graph.becomes_uint8(n))
    return frozenset(name_of(n.outputs[0]) for n in nodes)


@dataclass(frozen=True)
class Form:
    """The file with its codes as further outputs, for ARM or for the other families.

    Attributes:
        folder: existing folder for models and inputs.
        model: the model that returns its codes.
        codes: all tensors of codes, in the order of the graph.
        lifted: those that are uint8 here and int8 in the file.
    """

    folder: Path
    model: onnx.ModelProto
    codes: tuple[CodeTensor, ...]
    lifted: frozenset[str]

    @classmethod
    def of(
        cls,
        folder: Path,
        model: onnx.ModelProto,
        codes: tuple[CodeTensor, ...],
        lifted: frozenset[str],
    ) -> Form:
        """Write the model that returns the codes of a file."""
        extended = with_outputs(model, codes)
        _lift(extended, lifted)
        folder.mkdir()
        save(extended, folder / "codes.onnx")
        return cls(folder, extended, codes, lifted)

    @property
    def path(self) -> Path:
        """The file of `model`."""
        return self.folder / "codes.onnx"

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Output -> its index."""
        return {o.name: i for i, o in enumerate(self.model.graph.output)}

    def forced(self, run: Job, floats: Sequence[CodeTensor], outputs: Path) -> Job:
        """Return a job in which each kernel reads the codes of another run.

        Args:
            run: the other job, of this form or the other one; it has been run.
            floats: results that the job returns after the outputs and codes.
            outputs: folder for the outputs.
        """
        path, inputs = self.folder / "forced.onnx", self.folder / "forced-inputs"
        if not path.exists():
            read = {i for n in self.model.graph.node for i in n.input}
            codes = [c for c in self.codes if c.tensor in read]
            ports = {c.tensor: self._port(run, c) for c in codes}
            inputs.mkdir()
            self._write_inputs(run, inputs, codes)
            save(with_code_inputs(self.model, ports, floats), path)
        return Job(path, inputs, outputs, run.batches)

    def _port(self, run: Job, code: CodeTensor) -> onnx.ValueInfoProto:
        """Return the input for codes; sizes that differ between batches have names."""
        arrays = [self._array(run, code, batch) for batch in range(run.batches)]
        name, kind = f"{code.tensor}/given", helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        columns = enumerate(zip(*(a.shape for a in arrays), strict=True))
        sizes = [s[0] if len(set(s)) == 1 else f"{name}_{i}" for i, s in columns]
        return helper.make_tensor_value_info(name, kind, sizes)

    def _write_inputs(self, run: Job, inputs: Path, codes: Iterable[CodeTensor]) -> None:
        first = sum(1 for _ in run.inputs.glob("0-*.npy"))
        for batch in range(run.batches):
            for i in range(first):
                link_array(run.inputs, inputs, batch, i)
            for i, code in enumerate(codes, first):
                write_array(inputs, batch, i, self._array(run, code, batch))

    def _array(self, run: Job, code: CodeTensor, batch: int) -> Array:
        """Return the codes of a run of either form in the dtype of this form."""
        array = read_array(run.outputs, batch, self.place[code.tensor])
        dtype = "uint8" if code.tensor in self.lifted else code.dtype
        if str(array.dtype) == dtype:
            return array
        shift = 128 if dtype == "uint8" else -128
        return (array.astype(np.int16) + shift).astype(dtype)


def _lift(model: onnx.ModelProto, names: frozenset[str]) -> None:
    """Make codes uint8 in their QuantizeLinear and their DequantizeLinear."""
    stored = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output and node.attribute[0].name == "value":
            stored[node.output[0]] = node.attribute[0].t
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        tensor = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        if tensor not in names:
            continue
        zero = numpy_helper.to_array(stored[node.input[2]])
        lifted = (zero.astype(np.int16) + 128).astype(np.uint8)
        title = f"{tensor}/{node.op_type}/zero_point"
        model.graph.initializer.append(numpy_helper.from_array(lifted, title))
        node.input[2] = title
