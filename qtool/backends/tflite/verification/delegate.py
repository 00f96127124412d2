"""Comparison of the integer engine with LiteRT's default delegate, XNNPACK."""

from __future__ import annotations

from collections.abc import Iterable

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.runtime import Arrays
from qtool.backends.tflite import litert
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification.codes import difference
from qtool.verification.exactness import CodeCounts, Exactness


def compare_delegate_codes(file: TfliteFile, batches: Iterable[Arrays]) -> Exactness:
    """Run a file in the integer engine and in LiteRT as applications do, with XNNPACK.

    Without float operators the outputs are compared. Float operators fuse and round in their own
    way in the delegate, so with them the file is run with more outputs: the engine gets the
    delegate's own results of float operators, and what enters them is compared.

    Args:
        file: the file.
        batches: inputs in the layout of the network.

    Raises:
        DataError: there is no sample.
        KernelError: the engine has no kernel of an operator.
        VerificationError: LiteRT refuses the file.
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
            if not counts.add_output(a, b, difference(a, b)):
                wrong[program.labels.get(name, name)] = None
        counts.add_samples(batch)
    return Exactness(
        *counts.figures(),
        next(iter(wrong), None),
        program.float_nodes,
        profile=program.profile,
        runtime=f"{litert.TITLE} {litert.version()} with {litert.DELEGATE}",
    )


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
