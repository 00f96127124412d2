"""An open model file: what an adapter of each runtime offers, whatever the format of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qtool.core.errors import VerificationError
from qtool.core.remedies import CallEdit, DataEdit, Remedy
from qtool.core.types import Array

Clock = Callable[[], float]
"""Returns seconds since an arbitrary moment."""


@dataclass(frozen=True)
class PortInfo:
    """An input or output as a session describes it.

    Attributes:
        name: name in the model.
        type: "tensor(float)", ..., as in ONNX.
        shape: numbers, names for dynamic sizes, None for those without a name.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]


FLOATS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
"""Floating point types of inputs -> type of an array."""


class Session(Protocol):
    """What `qtool.backends.formats.open_model` returns; it lives as long as the file is used."""

    @property
    def inputs(self) -> Sequence[PortInfo]:
        """The inputs in order."""

    @property
    def outputs(self) -> Sequence[PortInfo]:
        """The outputs in order."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for one batch, whose arrays are in the order of the inputs.

        Raises:
            VerificationError: the runtime fails; names it.
        """

    def seconds(self, arrays: Sequence[Array], times: int, clock: Clock) -> float:
        """Return the duration of some runs of one batch.

        Args:
            arrays: as for `run`.
            times: number of runs.
            clock: clock for runs in this process; a runtime in another one measures its CPU time
                itself.

        Raises:
            VerificationError: as for `run`.
        """


def positions(ports: Sequence[PortInfo], others: Sequence[PortInfo]) -> list[int]:
    """Return the place of each port among others of the same names; its own if a name differs."""
    names = [port.name for port in others]
    same = sorted({*names}) == sorted(port.name for port in ports)  # no name stands twice
    return [names.index(port.name) for port in ports] if same else [*range(len(ports))]


class _Reordered:
    """A session with the inputs and outputs of another one's names in the order of that one."""

    def __init__(self, session: Session, taken: Sequence[int], returned: Sequence[int]) -> None:
        self._session, self._taken, self._returned = session, taken, returned
        self.inputs = [session.inputs[taken.index(i)] for i in range(len(taken))]
        self.outputs = [session.outputs[i] for i in returned]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        outputs = self._session.run([arrays[i] for i in self._taken])
        return [outputs[i] for i in self._returned]

    def seconds(self, arrays: Sequence[Array], times: int, clock: Clock) -> float:
        return self._session.seconds([arrays[i] for i in self._taken], times, clock)


def in_order_of(like: Session, session: Session) -> Session:
    """Return a session that takes and returns what another one does in its order, by the names of
    inputs and of outputs; names that are not the same ones have the order of the session."""
    taken = positions(session.inputs, like.inputs)
    returned = positions(like.outputs, session.outputs)
    if taken == sorted(taken) and returned == sorted(returned):
        return session
    return _Reordered(session, taken, returned)


def time_calls(call: Callable[[], object], times: int, clock: Clock) -> float:
    """Return the seconds that some calls take."""
    start = clock()
    for _ in range(times):
        call()
    return clock() - start


@dataclass(frozen=True)
class OtherRuntime:
    """A runtime besides the one that a format of files has on this machine.

    Attributes:
        name: as users name it.
        title: what runs the files, as its makers write it, and where.
        version: returns the version that runs the files, and on what, where it is not the CPU.
        problem: returns why no file can be run or timed here, with what to do; "" if they can.
        session: opens a file there, with a number of threads (0 lets the runtime choose). Raises
            VerificationError if there is a problem or the runtime refuses the file, OptionError if
            it cannot run that many threads.
    """

    name: str
    title: str
    version: Callable[[], str]
    problem: Callable[[], str]
    session: Callable[[str | Path, int], Session]

    def __str__(self) -> str:
        return f"{self.title}, version {self.version()}"


_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def fit_channels(array: Array, shape: Sequence[int | str | None]) -> Array:
    """Return images with their channels where a shape has them, if they only fit so.

    Args:
        array: the images, [samples, ...]; others than of four dimensions stay as they are.
        shape: sizes; what is no number, or a negative one, fits any size.
    """
    if array.ndim != len(_CHANNELS_LAST) or len(shape) != array.ndim or _fits(array.shape, shape):
        return array
    moved = (array.transpose(order) for order in (_CHANNELS_LAST, _CHANNELS_FIRST))
    return next((np.ascontiguousarray(m) for m in moved if _fits(m.shape, shape)), array)


def _fits(sizes: Sequence[int], shape: Sequence[int | str | None]) -> bool:
    return not _other_axes(sizes, shape) - {0}


def _other_axes(sizes: Sequence[int], shape: Sequence[int | str | None]) -> set[int]:
    """Return the dimensions in which an array has another size than a shape fixes."""
    pairs = enumerate(zip(sizes, shape, strict=True))
    return {axis for axis, (a, s) in pairs if isinstance(s, int) and 0 <= s != a}


def wrong_size(name: str, inputs: Iterable[tuple[Any, Array]]) -> VerificationError | None:
    """Return an error on the first array whose sizes are not those that a file takes.

    Args:
        name: name of the file.
        inputs: inputs with a name and a shape, each with its array.
    """
    for port, array in inputs:
        shape = list(port.shape)
        same_rank = len(shape) == array.ndim
        others = _other_axes(array.shape, shape) if same_rank else set()
        if same_rank and not others:
            continue
        taken = ", ".join("any" if s is None else str(s) for s in shape)
        remedies: list[Remedy] = [DataEdit("give data of that shape")]
        if others - {0}:
            names = [f"{port.name}:{axis}" for axis in sorted(others - {0})]
            line = f"`qtool quantize --dynamic {' --dynamic '.join(names)}`"
            remedies.append(CallEdit(f"write a file for other sizes with {line}"))
        return VerificationError(
            f"{name} takes '{port.name}' of shape [{taken}], and the data has {list(array.shape)}",
            *remedies,
        )
    return None
