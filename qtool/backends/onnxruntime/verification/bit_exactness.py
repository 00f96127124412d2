"""Comparison of the integer engine with ONNX Runtime: every code, with tolerance zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch

from qtool.backends.onnx.storage import load, save
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.core.atomic import scratch_folder
from qtool.core.types import Array
from qtool.verification.exactness import CodeCounts, Exactness

Arrays = Sequence[Array]

_PART = 8  # samples whose tensors are all in memory; a model may refuse fewer


def compare_codes(
    file: ExportedFile | str | Path, batches: Iterable[Arrays], profile: str | None = None
) -> Exactness:
    """Run a QDQ file in the integer engine and in ONNX Runtime with default optimisation.

    Args:
        file: the file to run; for another form than QDQ, an `ExportedFile` with the QDQ model.
        batches: inputs in the order of the file's inputs.
        profile: numerics profile; by default that of ONNX Runtime on this processor.

    Raises:
        DataError: there is no sample.
        KernelError: the engine cannot represent a node.
        VerificationError: the runtime does not load the file.
    """
    exported = ExportedFile.of(file)
    if exported is not file:
        exported.load()  # before the engine: an error of the runtime comes first
    program = exported.program(profile)
    inexact = program.influenced_by_float
    counts, first, wrong = CodeCounts(), None, dict[str, None]()
    for arrays in batches:
        batch = [np.array(a) for a in arrays]  # torch warns of arrays that are read only
        expected = exported.run(batch)
        actual = file_outputs(program, program(*map(torch.from_numpy, batch)))
        differing = []
        for name, a, b in zip(program.outputs, expected, actual, strict=True):
            if not counts.add_output(a, b, _largest_difference(program, a, b)):
                differing.append(name)
        counts.add_samples(batch)
        wrong |= {program.labels.get(n, n): None for n in differing if n not in inexact}
        for part in _parts(exported.path, batch) if differing else ():
            values = _runtime_values(exported.path, program, part)
            first = first or program.first_difference(values, list(map(torch.from_numpy, part)))
            wrong |= dict.fromkeys(program.wrong_kernels(values))
    return Exactness(*counts.figures(), first, program.float_nodes, tuple(wrong), program.profile)


def file_outputs(program: Program, outputs: Sequence[torch.Tensor]) -> list[Array]:
    """Return outputs of a program as the file has them: dequantized after a DequantizeLinear."""
    arrays = []
    for name, value in zip(program.outputs, outputs, strict=True):
        params = program.params.get(name)
        arrays.append((value if params is None else params.dequantize(value)).numpy())
    return arrays


def _largest_difference(program: Program, a: Array, b: Array) -> float:
    """Return the largest difference of two outputs in codes."""
    if a.dtype.kind != "f" or not a.size:
        return float(np.abs(a.astype(np.float64) - b).max()) if a.size else 0.0
    scales = [float(p.scale) for n in program.outputs if (p := program.params.get(n)) is not None]
    step = scales[0] if len(scales) == len(program.outputs) == 1 else float(np.ptp(a)) / 255 or 1.0
    return float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf).max()) / step


def _parts(path: Path, batch: Arrays) -> Iterator[Arrays]:
    """Yield a batch in parts of at least `_PART` samples, or whole where its inputs do not have one
    dynamic first size."""
    shapes = [i.type.tensor_type.shape.dim for i in load(path).graph.input]
    names = {dims[0].dim_param if len(dims) else "" for dims in shapes}
    sizes = {len(array) if array.ndim else 0 for array in batch}
    if len(names) != 1 or "" in names or len(sizes) != 1:
        yield batch
        return
    count = max(1, sizes.pop() // _PART)
    yield from zip(*(np.array_split(array, count) for array in batch), strict=True)


def _runtime_values(path: Path, program: Program, batch: Arrays) -> dict[str, torch.Tensor]:
    """Return the inputs, and all tensors of codes in ONNX Runtime.

    Codes that the runtime turns into uint8 are left out: as outputs they would stay int8, and other
    kernels would run.
    """
    model = load(path)
    outputs = {o.name for o in model.graph.output}
    computed = {o for n in model.graph.node for o in n.output}
    codes = (i.output for i in program.instructions if i.output in program.params)
    names = [name for name in codes if name in computed and name not in program.held_as_uint8]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in outputs)
    with scratch_folder() as folder:
        file = folder / "all.onnx"
        save(model, file)
        runtime = session(file)
        arrays = zip(runtime.get_outputs(), run(runtime, list(batch)), strict=True)
        values = {o.name: torch.from_numpy(array) for o, array in arrays if o.name in names}
    return values | dict(zip(program.inputs, map(torch.from_numpy, batch), strict=True))
