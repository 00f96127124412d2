"""Comparison of the integer engine with LiteRT's reference kernels: every code of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.runtime import Arrays
from qtool.backends.tflite import litert
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.verification.exactness import CodeCounts, Exactness

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
    counts, wrong = CodeCounts(), dict[str, None]()
    for batch in batches:
        traced = file.trace([a[:TRACED] if a.ndim else a for a in batch])
        wrong |= dict.fromkeys(program.wrong_kernels(traced))
        few = batch if not program.float_nodes else [a[:TRACED] if a.ndim else a for a in batch]
        expected = file.codes(few)
        actual = _engine_outputs(program, file, few, traced)
        for a, b in zip(expected, actual, strict=True):
            counts.add_output(a, b, difference(a, b))
        counts.add_samples(few)
    return Exactness(
        *counts.figures(),
        next(iter(wrong), None),
        program.float_nodes,
        tuple(wrong),
        program.profile,
        runtime=f"{litert.TITLE} {litert.version()}, reference kernels",
    )


def _engine_outputs(
    program: Program, file: TfliteFile, batch: Arrays, traced: Mapping[str, torch.Tensor]
) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of the program; with float operators, LiteRT's results of these."""
    if not program.float_nodes:
        return file.engine_codes(program, batch)
    inputs = map(torch.from_numpy, file.arrays(batch))
    values = program.values(*inputs, float_results=traced)
    return [values[n].numpy() for n in program.outputs]


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference; of floats in 1/255 of the range."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size or a.dtype.kind == "b":
        return 0.0
    largest = float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf).max())
    return largest / (float(np.ptp(a)) / 255 or 1.0) if a.dtype.kind == "f" else largest
