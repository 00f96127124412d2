"""Compares a file with the model that it was written from at other sizes than the sample's.

All other checks run at the sizes of the sample, where a size that became a constant is right. Noise
against the float model decides: that of the file is the simulation's, unless a kernel has a window,
a size or a position of the sample. Where it is larger, the nodes are compared one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.node_parity import compare_nodes
from qtool.backends.runtime import Runtime
from qtool.core.data import Batch
from qtool.core.errors import VerificationError, describe
from qtool.core.graph.other_sizes import OtherSize, at_other_sizes, varying_dimensions
from qtool.core.sqnr import sqnr
from qtool.core.types import Array
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.simulation.output_evidence import padding_of
from qtool.verification.verification_result import SizeCheck

_FAILED = re.compile(r"while running (\w+) node\. Name:'([^']*)'")
_ALLOWED = 6.0  # dB of the file below its simulation before nodes are compared
Arrays = Sequence[Array]


def compare_sizes(
    model: FakeQuantized, file: ExportedFile, batch: Batch, runtime: Runtime | None
) -> tuple[SizeCheck, ...]:
    """Run a file at other sizes that the float model takes; () where only the batch is dynamic.

    Args:
        model: the model that the file was written from.
        file: the file.
        batch: inputs of the sample's sizes.
        runtime: that of the target; None: ONNX Runtime, without optimisation.
    """
    names = varying_dimensions(model.graph)
    checks = _checks(model, file, batch, runtime, names) if names else []
    wrong = [check for check in checks if check.wrong]
    if not wrong:
        return tuple(checks)
    alone = [n for n in names if any(c.wrong for c in _checks(model, file, batch, runtime, [n]))]
    first = wrong[0]
    return (replace(first, dimensions=tuple(alone) or names),)


def _checks(
    model: FakeQuantized,
    file: ExportedFile,
    batch: Batch,
    runtime: Runtime | None,
    names: Iterable[str],
) -> list[SizeCheck]:
    run = partial(file.run_in, runtime)
    others = at_other_sizes(model.graph, batch, model.run_float, names)
    return [_check(model, file, other, run) for other in others]


def _check(
    model: FakeQuantized, file: ExportedFile, other: OtherSize, run: Callable[[Arrays], Arrays]
) -> SizeCheck:
    expected: Arrays = other.expected
    inputs, is_float = other.batch.arrays(), any(a.dtype.kind == "f" for a in expected)
    check = SizeCheck(other.sizes, None, samples=other.batch.size if is_float else 0)
    try:
        actual = run(inputs)
    except VerificationError as error:
        return replace(check, wrong=_failure(error))
    for name, a, b in zip(model.graph.outputs, expected, actual, strict=True):
        if a.shape != b.shape:
            node = _first_node(model, file, other)
            wrong = f"{node}output '{name}' has the shape {list(b.shape)} for {list(a.shape)}"
            return replace(check, wrong=wrong)
    padding = padding_of(model.graph)
    expected, actual, simulated = (
        padding.strip(inputs, outputs) for outputs in (expected, actual, model.run(other.batch))
    )
    noise = _worst(expected, actual)
    if noise is None or noise >= (_worst(expected, simulated) or np.inf) - _ALLOWED:
        return replace(check, sqnr_db=noise)
    node = _first_node(model, file, other)
    wrong = f"{node}the outputs have {noise:.1f} dB" if node else ""
    return replace(check, sqnr_db=noise, wrong=wrong)


def _failure(error: VerificationError) -> str:
    """Return which node fails, in place of ONNX Runtime's own lines."""
    node = _FAILED.search(str(error))
    return f"'{node[2]}' ({node[1]}) fails in the runtime" if node else describe(error)


def _worst(expected: Arrays, actual: Arrays) -> float | None:
    """Return the smallest SQNR of the float outputs in dB; None without noise."""
    pairs = [(a, b) for a, b in zip(expected, actual, strict=True) if a.dtype.kind == "f"]
    decibels = [sqnr(a, b) for a, b in pairs if a.size]
    return min((db for db in decibels if db is not None), default=None)


def _first_node(model: FakeQuantized, file: ExportedFile, other: OtherSize) -> str:
    """Return the first node whose result is not that of the plan, as the beginning of a sentence;
    "" if there is none."""
    batch = model.to_device(other.batch)
    try:
        nodes, _ = compare_nodes(file, model.module, batch, None)
    except Exception:  # noqa: BLE001  # tensors of other shapes are compared
        return ""
    return f"{nodes.wrong[0]} differs from the plan; " if nodes.wrong else ""
