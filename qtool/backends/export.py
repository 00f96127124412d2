"""The interface of a backend for quantized models: writing a planned graph, checking the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qtool.core.data import Batch
from qtool.core.types import Array
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.verification import Coverage, Exactness, Parity, Portability
from qtool.verification.verification_result import SizeCheck


@dataclass(frozen=True)
class ExportOptions:
    """The options of `Quantized.export`, which describes them.

    Attributes:
        format: name of the format.
        external_data: write weights to a second file.
        layout: layout of images at the interface.
        interface: type of inputs and outputs; None: the usual one of the target.
        batch: "1" or "dynamic"; None: what is faster.
    """

    format: str = "qdq"
    external_data: bool = False
    layout: str = "nhwc"
    interface: str | None = None
    batch: str | None = None


@dataclass(frozen=True)
class Checked:
    """Results of the checks of a file.

    Attributes:
        parity: compared with the fake-quantized model.
        exactness: compared with the integer engine; None where the runtime does not run here or is
            not known to the last bit.
        coverage: what runs in integers.
        outputs: results on the batch, in the layout of the network; None without `exactness`.
        portability: results on other CPUs, where they are known.
        missing: a sentence if installing the runtime, or another CPU, helps.
        remarks: sentences on the file.
        other_sizes: the file at other sizes of its dynamic dimensions.
    """

    parity: Parity
    exactness: Exactness | None
    coverage: Coverage
    outputs: list[Array] | None = None
    portability: Portability | None = None
    missing: str = ""
    remarks: tuple[str, ...] = ()
    other_sizes: tuple[SizeCheck, ...] = ()


class PlannedFile(Protocol):
    """A file and the quantized model that it was written from."""

    @property
    def simulation(self) -> FakeQuantized:
        """The model with the points of the file, which may have finer ones."""

    @property
    def place(self) -> str:
        """What runs the file here, if it is not the runtime of its target; "" if it is."""

    def takes(self, batch: Batch) -> bool:
        """Return whether the file takes the sizes of a batch, bound to the inputs of the graph."""

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the outputs of the file in the layout of the network.

        Args:
            arrays: one batch, in the order of the inputs.

        Raises:
            VerificationError: the runtime refuses the file.
        """

    def check(self, batch: Batch) -> Checked:
        """Check whether the file computes what the plan says.

        Args:
            batch: bound to the inputs of the graph.

        Raises:
            VerificationError: the file is malformed, or the runtime refuses it.
        """

    def correctness(self, batch: Batch) -> Checked:
        """Compare the file with the plan and with the engine alone, and audit it; see `check`."""


class Export(Protocol):
    """A quantized model in one format."""

    def writing(
        self, path: Path, options: ExportOptions, sample: Batch, verify: bool
    ) -> AbstractContextManager[PlannedFile]:
        """Write a file to a temporary path; at the end of the block it is moved into place.

        Args:
            path: the final one.
            options: options of the format.
            sample: a batch for a self-test in the file.
            verify: the file will be checked, with what is in memory for that.

        Raises:
            ExportError: an operator cannot be written, or an option does not fit the format.
            FileError: the file cannot be written.
        """

    def file(self, path: Path, sample: Batch) -> PlannedFile:
        """Return an existing file of this model.

        Args:
            path: the file.
            sample: a batch for the comparison with other CPUs.

        Raises:
            FileError: not a file of this format.
            VerificationError: a file of another model.
        """

    def coverage(self) -> Coverage:
        """Return what runs in integers, before a file was verified."""

    def program(self, profile: str | None = None) -> Any:
        """Return the integer program; see `Quantized.integer`."""


MakeExport = Callable[[FakeQuantized, Mapping[str, str]], Export]
"""Takes the model and the description for its file."""
