"""What a runtime is to qtool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Sequence[np.ndarray[Any, Any]]
Run = Callable[[str | Path, Arrays], list[np.ndarray[Any, Any]]]
"""A file and one batch, in the order of the file's inputs, to its outputs in the file's order."""


@dataclass(frozen=True)
class ExecutedKernel:
    """One kernel of the graph that a runtime makes of a file.

    kind: its operator and type, as the runtime calls them. integer: it computes on codes. nodes:
    of the file, by name or by what they make, that it stands for.
    """

    kind: str
    integer: bool
    nodes: frozenset[str]


@dataclass(frozen=True)
class Runtime:
    """A program that runs ONNX files.

    Attributes:
        name: as targets name it.
        title: as its makers write it.
        package: what to install it with.
        version: of the one that is installed; None where none is.
        run: a file, with the runtime's own optimisation. Raises VerificationError, with the
            runtime's words, where it does not take the file.
        executed: the kernels that it really runs for a file, where it tells which nodes each stands
            for. Raises VerificationError as `run` does.
        audited: whether qtool reads back the graph that it really runs, and knows its arithmetic
            to the last bit.
    """

    name: str
    title: str
    package: str
    version: Callable[[], str | None]
    run: Run
    executed_kernels: Callable[[str | Path], tuple[ExecutedKernel, ...]] | None = None
    graph_readable: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version() or '(not installed)'}"

    @property
    def installed(self) -> bool:
        return self.version() is not None
