"""Comparison of the integer engine with LiteRT's reference kernels: every code of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.tflite import litert
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.core.errors import DataError
from qtool.verification.exactness import Exactness

Arrays = Sequence[np.ndarray[Any, Any]]

TRACED = 4
"""Samples of a batch on which every tensor is compared; outputs are compared on all."""


def compare_litert_codes(file: TfliteFile, batches: Iterable[Arrays]) -> Exactness:
    """Run a file in the integer engine and in LiteRT's reference kernels.

    Each kernel of the engine gets the tensors that LiteRT has at its inputs, and must return the
    codes that LiteRT has at its output. Without float operators, the outputs of the whole program
    are compared as well; with them LiteRT computes these on both sides.

    Args:
        file: the file.
        batches: inputs in the layout of the network.

    Raises:
        DataError: there is no sample.
        KernelError: the engine has no kernel of an operator.
        VerificationError: LiteRT refuses the file.
    """
    program = file.program()
    samples = elements = identical = 0
    worst, wrong = 0.0, dict[str, None]()
    for batch in batches:
        traced = file.trace([a[:TRACED] if a.ndim else a for a in batch])
        wrong |= dict.fromkeys(wrong_kernels(program, traced))
        few = batch if not program.float_nodes else [a[:TRACED] if a.ndim else a for a in batch]
        expected = file.codes(few)
        actual = _engine_outputs(program, file, few, traced)
        for a, b in zip(expected, actual, strict=True):
            same = (a == b) | (np.isnan(a) & np.isnan(b)) if a.shape == b.shape else np.zeros(1)
            elements, identical = elements + a.size, identical + int(same.sum())
            worst = max(worst, difference(a, b))
        samples += len(few[0]) if few and few[0].ndim else 1
    if not samples:
        raise DataError("the data is empty, so nothing was compared; give at least one sample")
    return Exactness(
        samples,
        elements,
        identical,
        worst,
        next(iter(wrong), None),
        program.float_nodes,
        tuple(wrong),
        program.profile,
        runtime=f"{litert.TITLE} {litert.version()}, reference kernels",
    )


def wrong_kernels(program: Program, values: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the kernels that give other values than LiteRT for the same inputs."""
    known, wrong = {**program.constants, **values}, []
    for kernel in program.instructions:
        computed = kernel.output in values and all(n in known for n in kernel.inputs)
        if kernel.kind == "float" or not computed:
            continue
        with torch.inference_mode():
            result = kernel.kernel(*(known[n] for n in kernel.inputs))
        if not _same(result, values[kernel.output]):
            wrong.append(program.labels.get(kernel.output, kernel.output))
    return wrong


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _engine_outputs(
    program: Program, file: TfliteFile, batch: Arrays, traced: Mapping[str, torch.Tensor]
) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of the program; with float operators, LiteRT's results of these."""
    if not program.float_nodes:
        return file.engine_codes(program, batch)
    arrays = file.arrays(batch)
    values = dict(program.constants)
    values |= {n: torch.from_numpy(a) for n, a in zip(program.inputs, arrays, strict=True)}
    with torch.inference_mode():
        for step in program.instructions:
            if step.kind == "float":
                values |= {n: traced[n] for n in step.outputs if n in traced}
            else:
                values[step.output] = step.kernel(*(values[n] for n in step.inputs))
    return [values[n].numpy() for n in program.outputs]


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference; of floats in 1/255 of the range."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size or a.dtype.kind == "b":
        return 0.0
    largest = float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf).max())
    return largest / (float(np.ptp(a)) / 255 or 1.0) if a.dtype.kind == "f" else largest
