"""The interface of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.workaround import Workaround
from qtool.core.types import Array

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
