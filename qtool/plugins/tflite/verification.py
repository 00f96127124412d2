"""Comparison of the integer engine with LiteRT: its reference kernels, and its default delegate.

The check of a file alone compares both, and runs its self-test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.runtime import Arrays
from qtool.backends.subprocess_runner import TimeLimitError
from qtool.core.errors import KernelError, VerificationError
from qtool.core.types import Array, Progress
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.model_file import TfliteModelFile
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.verification import Exactness, FileCheck
from qtool.verification.exactness import CodeCounts

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
    size = 1 if file.is_fixed else TRACED
    for batch in batches:
        first_rows = [a[:size] if a.ndim else a for a in batch]
        traced = file.trace(first_rows)
        wrong |= dict.fromkeys(program.wrong_kernels(traced))
        few = first_rows if program.float_nodes else batch
        expected = file.codes(few)
        actual = _engine_outputs(program, file, few, traced)
        for a, b in zip(expected, actual, strict=True):
            counts.add_output(a, b, _difference(a, b))
        counts.add_samples(few)
    first, runtime = next(iter(wrong), None), f"{_runtime()}, reference kernels"
    return Exactness(
        *counts.figures(), first, program.float_nodes, tuple(wrong), program.profile, runtime
    )


def compare_delegate_codes(file: TfliteFile, batches: Iterable[Arrays]) -> Exactness:
    """Run a file in the integer engine and in LiteRT as applications do, with XNNPACK.

    Without float operators the outputs are compared. Float operators fuse and round in their own
    way in the delegate, so with them the file is run with more outputs: the engine gets the
    delegate's own results of float operators, and what enters them is compared.

    Arguments and errors are those of `compare_litert_codes`.
    """
    program = file.default_program()
    results, compared = _borders(program)
    counts, wrong = CodeCounts(), dict[str, None]()
    for batch in batches:
        if program.float_nodes:
            observed = file.run_observed(batch, [*results, *compared])
            inputs = (observed[n] for n in program.inputs)
            computed = program.values(*inputs, float_results=observed)
            pairs = [(n, observed[n].numpy(), computed[n].numpy()) for n in compared]
        else:
            codes = file.codes(batch, default=True), file.engine_codes(program, batch)
            pairs = list(zip(program.outputs, *codes, strict=True))
        for name, a, b in pairs:
            if not counts.add_output(a, b, _difference(a, b)):
                wrong[program.labels.get(name, name)] = None
        counts.add_samples(batch)
    first, runtime = next(iter(wrong), None), f"{_runtime()} with {litert.DELEGATE}"
    return Exactness(
        *counts.figures(), first, program.float_nodes, profile=program.profile, runtime=runtime
    )


def _engine_outputs(
    program: Program, file: TfliteFile, batch: Arrays, traced: Mapping[str, torch.Tensor]
) -> list[Array]:
    """Return the outputs of the program; with float operators, LiteRT's results of these."""
    if not program.float_nodes:
        return file.engine_codes(program, batch)
    inputs = map(torch.from_numpy, file.arrays(batch))
    values = program.values(*inputs, float_results=traced)
    return [values[n].numpy() for n in program.outputs]


def _runtime() -> str:
    return f"{litert.TITLE} {litert.version()}"


def _difference(a: Array, b: Array) -> float:
    """Return the largest difference; of floats in 1/255 of the range."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size or a.dtype.kind == "b":
        return 0.0
    largest = float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf).max())
    return largest / (float(np.ptp(a)) / 255 or 1.0) if a.dtype.kind == "f" else largest


def _borders(program: Program) -> tuple[list[str], list[str]]:
    """Return the results of float operators that kernels read, and what kernels end in."""
    is_float = {n: s.kind == "float" for s in program.instructions for n in s.outputs}
    reads = {
        kind: {n for s in program.instructions if (s.kind == "float") is kind for n in s.inputs}
        for kind in (True, False)
    }
    ends = reads[True].union(program.outputs)
    results = [n for n, made in is_float.items() if made and n in reads[False]]
    return results, [n for n, made in is_float.items() if not made and n in ends]


def verify(
    opened: TfliteModelFile, batches: Iterable[Sequence[Array]], progress: Progress
) -> FileCheck:
    """Compare the engine with LiteRT's reference kernels, and with its delegate.

    See `ModelFile.verify`.
    """
    self_test = opened.check_self_test()
    if self_test.unmodified is False:  # LiteRT crashes or hangs on some damaged files
        why = "the file was modified"
        return FileCheck(0, 0, 0, 0.0, None, 0, self_test=self_test, not_compared=why)
    file, inputs = TfliteFile(opened.path), list(batches)
    reference = compare_litert_codes(file, progress(inputs))
    try:
        delegate = compare_delegate_codes(file, inputs)
    except TimeLimitError:
        raise
    except (KernelError, VerificationError):  # it fails on some files that LiteRT runs
        delegate = None
    return FileCheck(**vars(reference), self_test=self_test, delegate=delegate)


def compare_codes(path: Path, batches: Iterable[Sequence[Array]]) -> Exactness:
    """Compare the engine with LiteRT's reference kernels; see `ModelFile.compare_codes`."""
    return compare_litert_codes(TfliteFile(path), batches)
