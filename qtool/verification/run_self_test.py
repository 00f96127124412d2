"""Run the self-test of a file: is it unmodified, and does it give the expected results?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qtool.backends.onnx.content_digest import content_digest
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.core.argument_names import argument
from qtool.core.errors import VerificationError
from qtool.core.formats import part
from qtool.core.records import to_json
from qtool.core.types import Array
from qtool.core.value_names import tensor_of
from qtool.verification.observed_tensors import TensorReader, observed_tensors
from qtool.verification.self_test_creation import exact_digests, sketches
from qtool.verification.self_test_inputs import generate_inputs
from qtool.verification.sketch import distance_db

_NEW_FILE = "take a fresh copy of the file, or convert again"


@dataclass(frozen=True)
class SelfCheck:
    """Result of the self-test of a file on this machine.

    Attributes:
        present: whether the file contains a test.
        missing: why it contains none.
        failure: why the test could not be run.
        unmodified: whether graph and weights are as qtool wrote them; None if the file has no
            digest of them.
        profile: the numerics profile that the codes were compared with; empty if the file has none
            for this CPU.
        tensors: number of integer tensors compared to the last bit.
        identical: number of them that are as stored.
        first: the first one that differs, or those that share its digest.
        other: another profile that gives these codes, if they differ.
        unlike: profiles with which the file gives other codes than with `profile`.
        approximate: number of tensors after float nodes compared by sketches.
        worst: the one of these with the lowest SQNR.
        worst_db: its estimated SQNR.
        limit_db: lowest SQNR that passes.
    """

    JSON_PROPERTIES: ClassVar = ("passed",)

    present: bool = False
    missing: str = ""
    failure: str = ""
    unmodified: bool | None = None
    profile: str = ""
    tensors: int = 0
    identical: int = 0
    first: tuple[str, ...] = ()
    other: str = ""
    unlike: tuple[str, ...] = ()
    approximate: int = 0
    worst: str = ""
    worst_db: float = inf
    limit_db: float = -inf

    @property
    def exact(self) -> bool:
        """Whether every integer tensor is as stored."""
        return self.identical == self.tensors

    @property
    def near(self) -> bool:
        """Whether every tensor after float nodes is close to the stored one."""
        return not self.worst_db < self.limit_db

    @property
    def passed(self) -> bool:
        """Whether nothing differs. A file without a test passes."""
        return self.unmodified is not False and not self.failure and self.exact and self.near

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for a summary."""
        if self.unmodified is None:
            return [("self-test", f"none in this file{self.missing and ': '}{self.missing}")]
        rows = [("self-test", text) for text in (self._codes(), self._sketches()) if text]
        return [("content", self._content()), *rows]

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self.rows())

    def _content(self) -> str:
        if self.unmodified:
            return "unmodified since qtool wrote it"
        return f"modified since qtool wrote it; {_NEW_FILE}"

    def _codes(self) -> str:
        if self.missing or self.failure:
            return f"{self.missing and 'none, '}{self.missing or self.failure}"
        if not self.tensors:
            return "" if self.approximate else "nothing to compare on this CPU"
        count = part(self.identical, self.tensors)
        text = f"{count} integer tensors as planned ({self.profile})"
        if self.exact and self.unlike:
            return f"{text}; these codes differ from those on {', '.join(self.unlike)}"
        if self.exact:
            return text
        text += f"; the first difference is in {' or '.join(self.first)}. "
        if self.other:
            text += f"The codes match those of {self.other}. "
        return text + self._advice()

    def _sketches(self) -> str:
        if not self.approximate:
            return ""
        text = f"{self.approximate} tensors after float nodes compared approximately: "
        if self.worst_db == inf:
            return f"{text}equal"
        text += f"at least {self.worst_db:.1f} dB SQNR (limit {self.limit_db:g} dB)"
        return text if self.near else f"{text}, lowest in {self.worst}. {self._advice()}"

    def _advice(self) -> str:
        if not self.unmodified:
            return f"The file was modified: {_NEW_FILE}"
        return (
            "The kernels of this CPU or of this version of ONNX Runtime give other results: "
            f"convert for a target that fits this CPU, with {argument('--target')}"
        )


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
    file = OnnxModel.of(path)
    names = observed_tensors(file)
    if len(names) != len(test.kinds):
        raise VerificationError(f"the file has {len(names)} tensors to test, not {len(test.kinds)}")
    reader = TensorReader(path, names, [name_of(v) for v in file.outputs])
    runs = [list(reader.values(inputs)) for inputs in generate_inputs(file, test)]
    return _with_sketches(_with_codes(check, test, names, runs), test, names, runs)


def _with_codes(
    check: SelfCheck, test: SelfTest, names: Sequence[str], runs: Sequence[Sequence[Array]]
) -> SelfCheck:
    groups = max(map(len, test.digests.values()), default=0)
    if not groups:
        return check
    actual = exact_digests(test.kinds, runs, groups)
    own = machine_profile()
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


def _with_sketches(
    check: SelfCheck, test: SelfTest, names: Sequence[str], runs: Sequence[Sequence[Array]]
) -> SelfCheck:
    if not test.sketches:
        return check
    actual = sketches([s.tensor for s in test.sketches], runs)
    ratios = [distance_db(*pair) for pair in zip(test.sketches, actual, strict=True)]
    least = int(np.argmin(ratios))
    return replace(
        check,
        approximate=len(ratios),
        worst=tensor_of(names[test.sketches[least].tensor]),
        worst_db=ratios[least],
        limit_db=test.limit_db,
    )
