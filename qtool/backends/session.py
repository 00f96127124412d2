"""An open model file, with the interface of ONNX Runtime's sessions whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qtool.core.errors import VerificationError
from qtool.core.versions import version_of


class Session(Protocol):
    """What `qtool.backends.table.open_model` returns."""

    def get_inputs(self) -> Sequence[Any]:
        """Return the inputs, each with a name, a type and a shape."""

    def get_outputs(self) -> Sequence[Any]:
        """Return the outputs, as the inputs."""

    def run(self, names: None, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Return all outputs."""


@runtime_checkable
class TimedSession(Session, Protocol):
    """A session in another process, which measures there how long it runs."""

    def seconds(self, feed: Mapping[str, Any], times: int) -> float:
        """Return the CPU time of some runs, in seconds."""


@runtime_checkable
class PreparedSession(Session, Protocol):
    """A session whose inputs stay in the runtime, so that runs can be timed without copies."""

    def prepared(self, feed: Mapping[str, Any]) -> Callable[[], object]:
        """Return a function that runs on inputs that are there already."""


@dataclass(frozen=True)
class OtherRuntime:
    """A runtime besides the one that a format of files has on this machine.

    Attributes:
        name: as users name it.
        title: what runs the files, as its makers write it, and where.
        version: returns the installed version, None if it is not installed.
        remedy: how to install it, as part of a sentence.
        session: opens a file there, with a number of threads (0 lets the runtime choose). Raises
            VerificationError if it is not installed or refuses the file, OptionError if it cannot
            run that many threads.
    """

    name: str
    title: str
    version: Callable[[], str | None]
    remedy: str
    session: Callable[[str | Path, int], Session]

    def __str__(self) -> str:
        return f"{self.title}, version {self.version()}"


def feeds(model: Session, arrays: Sequence[np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return input name -> array, for arrays in the order of the inputs."""
    return {i.name: a for i, a in zip(model.get_inputs(), arrays, strict=True)}


def run(model: Session, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Run one batch and return the outputs; arrays in the order of the inputs.

    Raises:
        VerificationError: the runtime fails.
    """
    try:
        return model.run(None, feeds(model, arrays))
    except VerificationError:
        raise  # names its runtime
    except Exception as error:
        runtime = f"onnxruntime {version_of('onnxruntime')}"
        raise VerificationError(f"{runtime} fails on the model: {error}") from error
