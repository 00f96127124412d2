"""An ONNX file in two sessions, as written and optimised: what needs neither torch nor a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.runtime import Arrays
from qtool.verification.exactness import CodeCounts
from qtool.verification.parity import Difference, difference
from qtool.verification.session_check import SessionCheck


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
    for batch in batches:
        before, name = counts.samples, path.name
        outputs, steps = run(written, batch, name), [None] * len(written.get_outputs())
        parts.append(difference(outputs, run(optimised, batch, name), steps))
        counts.add_samples(batch)
        sizes.add(counts.samples - before)
    samples, *_ = counts.figures()
    return SessionCheck(samples, tuple(sorted(sizes)), Difference.largest(parts), coverage)
