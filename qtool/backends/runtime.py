"""The interface of a runtime, and of a rewrite of files that avoids a defect of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.core.types import Array
from qtool.core.versions import version_of


@dataclass(frozen=True)
class Workaround:
    """One defect and its rewrite.

    Attributes:
        key: unique.
        package: Python package with the defect.
        reason: operator and defect, in a sentence.
        rewrite: changes a model in place, so that it computes the same without the defect.
        since: first version with it; "" where it is older than what qtool runs on, or not known.
        fixed_in: first version without it; "" while there is none.
        upstream: address of the report or of the change that made it; "" where none is known.
        reproduction: test that fails once the defect is fixed, `file::function` below
            tests/upstream.
    """

    key: str
    package: str
    reason: str
    rewrite: Callable[[Any], None]
    since: str = ""
    fixed_in: str = ""
    upstream: str = ""
    reproduction: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether the installed version has the defect; True if the package is not installed."""
        installed = _release(version_of(self.package))
        older = _release(self.since) > installed
        mended = bool(self.fixed_in) and installed >= _release(self.fixed_in)
        return not installed or not (older or mended)


def apply_workarounds(model: Any, workarounds: Iterable[Workaround]) -> None:
    """Rewrite a model in place by each workaround that is needed."""
    for workaround in workarounds:
        if workaround.is_needed:
            workaround.rewrite(model)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


Arrays = Sequence[Array]
Run = Callable[[str | Path, Arrays], list[Array]]
"""Takes a file and one batch in the order of its inputs, returns its outputs in order."""


@dataclass(frozen=True)
class ExecutedKernel:
    """One kernel of the graph that a runtime executes for a file.

    Attributes:
        kind: operator and type, as the runtime names them.
        integer: whether it computes on codes.
        nodes: the nodes of the file that it fuses, by their names or those of their outputs.
    """

    kind: str
    integer: bool
    nodes: frozenset[str]


@dataclass(frozen=True)
class Runtime:
    """A program that runs ONNX files.

    Attributes:
        name: the key that targets use.
        title: as its makers write it.
        package: the Python package to install.
        version: returns the installed version, None if it is not installed.
        run: runs a file with the runtime's own optimisation. Raises VerificationError with the
            runtime's message if it refuses the file.
        executed_kernels: returns the kernels that it executes for a file, for runtimes that report
            them. Raises VerificationError as `run` does.
        workarounds: rewrites of the ONNX files of its targets.
        graph_readable: whether qtool reads the executed graph back and reproduces its arithmetic
            to the last bit.
    """

    name: str
    title: str
    package: str
    version: Callable[[], str | None]
    run: Run
    executed_kernels: Callable[[str | Path], tuple[ExecutedKernel, ...]] | None = None
    graph_readable: bool = False
    workarounds: tuple[Workaround, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version() or '(not installed)'}"

    @property
    def installed(self) -> bool:
        return self.version() is not None
