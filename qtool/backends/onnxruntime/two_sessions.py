"""An ONNX file in two sessions, as written and optimised: what needs neither torch nor a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.cpu import SATURATING, machine_profile
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.runtime import Arrays
from qtool.core.types import Array
from qtool.verification.exactness import CodeCounts
from qtool.verification.parity import Difference, difference
from qtool.verification.self_check import SessionCheck


def compare_sessions(path: Path, batches: Iterable[Arrays]) -> SessionCheck:
    """Run a file as written, node by node, and with the optimisations of ONNX Runtime.

    Args:
        path: an ONNX file.
        batches: inputs in the order of the file's inputs.

    Raises:
        DataError: there is no sample.
        VerificationError: the runtime does not load the file, or does not take a batch.
    """
    coverage = audit(path)
    written, optimised = (session(path, optimise) for optimise in (False, True))
    parts, counts, sizes = list[Difference](), CodeCounts(), set[int]()
    names = [output.name for output in written.get_outputs()]
    dead = set(names)
    for batch in batches:
        before, name = counts.samples, path.name
        outputs, steps = run(written, batch, name), [None] * len(names)
        dead &= {n for n, o in zip(names, outputs, strict=True) if _is_dead(o)}
        parts.append(difference(outputs, run(optimised, batch, name), steps))
        counts.add_samples(batch)
        sizes.add(counts.samples - before)
    samples, *_ = counts.figures()
    largest, lacking = Difference.largest(parts), tuple(n for n in names if n in dead)
    saturates = machine_profile() in SATURATING
    return SessionCheck(samples, tuple(sorted(sizes)), largest, coverage, lacking, saturates)


def _is_dead(output: Array) -> bool:
    """Return whether an output has no finite value."""
    return output.dtype.kind == "f" and bool(output.size) and not np.isfinite(output).any()
