"""Making the self-test of a file: from the integer engine, for each CPU whose kernels it knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.self_test_format import MAX_BYTES, SelfTest
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.self_test.inputs import generate_inputs, input_specs, run_count
from qtool.backends.onnxruntime.self_test.observed_tensors import exact_digests, observed_tensors
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.profiles import PROFILES
from qtool.core.errors import DataError, KernelError, VerificationError
from qtool.core.types import Array

_GROUPS = 64
_RUNTIME = "onnxruntime"


def make_self_test(exported: ExportedFile, sample: Sequence[Array], macs: int = 0) -> SelfTest:
    """Return the self-test of a file, without its digest.

    Args:
        exported: the file.
        sample: valid inputs of a few samples, in the order of the file's inputs: they give the
            sizes of dynamic dimensions and the ranges of inputs that are not quantized.
        macs: multiply-accumulates of a sample; a small model is tested with more samples.

    Raises:
        FileError: the file cannot be read.
    """
    test = SelfTest("")
    try:
        specs = input_specs(exported.file, sample)
        return _with_results(exported, replace(test, inputs=specs, runs=run_count(specs, macs)))
    except (DataError, KernelError, RuntimeError, VerificationError):  # torch: sizes do not fit
        return SelfTest("", missing="it does not run on generated inputs")


def _with_results(exported: ExportedFile, test: SelfTest) -> SelfTest:
    names = observed_tensors(exported.file)
    inputs = list(generate_inputs(exported.file, test))
    programs = list(_programs(exported))
    kinds = _kinds(programs, exported.file, names)
    runs = {
        p.profile: [_traced(p, exported.file, names, kinds, i) for i in inputs] for p in programs
    }
    for groups in (_GROUPS, _GROUPS // 2, _GROUPS // 4, _GROUPS // 8, 1):
        few = min(groups, kinds.count("e"))
        digests = {profile: exact_digests(kinds, values, few) for profile, values in runs.items()}
        complete = replace(test, kinds=kinds, digests=digests if few else {})
        if len(complete.text()) <= MAX_BYTES:
            return complete
    return SelfTest("", missing=f"it would take more than {MAX_BYTES} bytes")


def _programs(exported: ExportedFile) -> Iterator[Program]:
    """Iterate over the programs for all CPU families in whose arithmetic the engine can run it."""
    for name, profile in PROFILES.items():
        if profile.family == _RUNTIME:
            with suppress(KernelError):
                yield exported.program(name)


def _kinds(programs: Sequence[Program], file: OnnxModel, names: Sequence[str]) -> str:
    """Return "e" for each tensor that every program computes without float nodes, else "-"."""
    outputs = set(map(name_of, file.outputs))
    exact = []
    for p in programs:
        computed = {o for step in p.instructions for o in step.outputs} - p.held_as_uint8
        inexact = p.influenced_by_float
        exact.append(
            {n for n in names if n in computed | outputs and _source(p, file, n) not in inexact}
        )
    return "".join("e" if exact and all(n in each for each in exact) else "-" for n in names)


def _source(program: Program, file: OnnxModel, name: str) -> str:
    """Return the name of the codes of a dequantized graph output; other names unchanged."""
    return dict(zip(map(name_of, file.outputs), program.outputs, strict=True)).get(name, name)


def _traced(
    program: Program, file: OnnxModel, names: Sequence[str], kinds: str, inputs: Sequence[Array]
) -> list[Array]:
    """Return the exact tensors as the file has them, and empty arrays in place of the others."""
    values = program.values(*map(torch.from_numpy, inputs))
    arrays = []
    for name, kind in zip(names, kinds, strict=True):
        source = _source(program, file, name)
        value = values[source] if kind == "e" else torch.empty(0)
        dequantized = kind == "e" and source != name
        arrays.append((program.params[source].dequantize(value) if dequantized else value).numpy())
    return arrays
