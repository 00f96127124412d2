"""Results of a file on other CPUs, computed by the integer engine.

Which operators give other codes elsewhere is decided for all codes, in
`integer_engine.cpu_divergence`. If some do, the integer engine computes the file under the other
CPU's profile on a few samples. Float nodes run in this machine's runtime; on other CPUs their last
bits differ, so they are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.integer_engine.cpu_divergence import diverging_nodes
from qtool.backends.onnxruntime.verification.bit_exactness import file_outputs
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.profiles import PROFILES
from qtool.core.errors import KernelError
from qtool.core.sqnr import sqnr
from qtool.core.types import Array
from qtool.verification.portability import PORTABLE, OtherCpu, Portability


def portability(
    exported: ExportedFile, here: str, inputs: Sequence[Array], portable: bool
) -> Portability | None:
    """Return the results of a file on other CPUs; None if the engine cannot represent it.

    Args:
        exported: the file.
        here: this machine's profile.
        inputs: a few samples, arrays in the order of the file's inputs.
        portable: see `Portability`.
    """
    others = [n for n, p in PROFILES.items() if p.family == PORTABLE and n != here]
    try:
        nodes = diverging_nodes(exported.qdq, here, others)
        own = exported.program(here)
        rows, expected = [], None
        for name in others:
            row = OtherCpu(name, PROFILES[name].cpus, nodes[name])
            if row.nodes:
                expected = expected or _outputs(own, inputs)
                there = _outputs(lower(exported.qdq, name), inputs)
                row = _compared(row, expected, there)
            rows.append(row)
    except KernelError:
        return None
    samples = 0 if expected is None else len(inputs[0])
    return Portability(tuple(rows), samples, own.float_nodes, portable)


def _outputs(program: Program, inputs: Sequence[Array]) -> list[Array]:
    return file_outputs(program, program(*map(torch.from_numpy, inputs)))


def _compared(row: OtherCpu, here: Sequence[Array], there: Sequence[Array]) -> OtherCpu:
    ratios = [r for a, b in zip(here, there, strict=True) if (r := sqnr(a, b)) is not None]
    changed, first = None, here[0]
    if first.ndim == 2 and first.shape[1] > 1:
        changed = float((first.argmax(1) != there[0].argmax(1)).mean())
    return OtherCpu(row.profile, row.cpu, row.nodes, min(ratios, default=None), changed)
