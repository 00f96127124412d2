"""Run the self-test of a file: is it unmodified, and does it give the expected results?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qtool.backends.onnx.content_digest import content_digest
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.self_test.inputs import generate_inputs
from qtool.backends.onnxruntime.self_test.observed_tensors import (
    TensorReader,
    exact_digests,
    observed_tensors,
)
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.core.value_names import tensor_of
from qtool.verification.self_check import SelfCheck


def check_self_test(path: str | Path) -> SelfCheck:
    """Run the self-test of a file in ONNX Runtime.

    Raises:
        FileError: not an ONNX file, or its external data cannot be read.
    """
    try:
        test = SelfTest.of(load_outline(path))
    except VerificationError as error:
        return SelfCheck(present=True, unmodified=False, failure=str(error))
    if test is None:
        return SelfCheck()
    unmodified = content_digest(path) == test.content if test.content else None
    check = SelfCheck(not test.missing, test.missing, unmodified=unmodified)
    if test.missing:
        return check
    try:
        return _with_results(check, test, Path(path))
    except VerificationError as error:
        return replace(check, failure=f"cannot be run ({error})")


def _with_results(check: SelfCheck, test: SelfTest, path: Path) -> SelfCheck:
    if "e" not in test.kinds:
        return check
    file = OnnxModel.of(path)
    names = observed_tensors(file)
    if len(names) != len(test.kinds):
        raise VerificationError(f"the file has {len(names)} tensors to test, not {len(test.kinds)}")
    reader = TensorReader(path, names, [name_of(v) for v in file.outputs])
    runs = [list(reader.values(inputs)) for inputs in generate_inputs(file, test)]
    return compare_results(check, test, names, runs, machine_profile())


def compare_results(
    check: SelfCheck,
    test: SelfTest,
    names: Sequence[str],
    runs: Sequence[Sequence[Array]],
    own: str,
) -> SelfCheck:
    """Return a check with the comparison of tensors with those of the test.

    Args:
        check: a check without results.
        test: the expected results.
        names: names of the tensors.
        runs: the tensors of each run.
        own: the numerics profile of the runtime.
    """
    groups = max(map(len, test.digests.values()), default=0)
    if not groups:
        return check
    actual = exact_digests(test.kinds, runs, groups)
    matching = next((name for name, each in test.digests.items() if each == actual), "")
    compared = own if own in test.digests else matching
    if not compared:
        return check
    exact = [tensor_of(n) for n, kind in zip(names, test.kinds, strict=True) if kind == "e"]
    parts = [part.tolist() for part in np.array_split(np.array(exact, object), groups)]
    wrong = [p for p, a, b in zip(parts, test.digests[compared], actual, strict=True) if a != b]
    return replace(
        check,
        profile=compared,
        tensors=len(exact),
        identical=len(exact) - sum(map(len, wrong)),
        first=tuple(wrong[0]) if wrong else (),
        other=matching if wrong else "",
        unlike=tuple(n for n, each in test.digests.items() if each != test.digests[compared]),
    )
