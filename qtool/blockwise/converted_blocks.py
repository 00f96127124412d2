"""The result of a block-wise conversion: what the records of its blocks say of the whole file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qtool.backends.onnx.storage import model_files
from qtool.blockwise.block_plan import BlockwiseRun
from qtool.blockwise.checkpoint import BlockRecord
from qtool.core import number_texts
from qtool.core.data import Batch
from qtool.core.summary import group_names
from qtool.core.types import Change
from qtool.verification import Coverage, Exactness, Fidelity, Parity, Verification
from qtool.verification.estimate import Estimate, OutputEstimate
from qtool.verification.fidelity import decibels_text


@dataclass(frozen=True)
class ConvertedBlocks:
    """A model that was converted block by block.

    Attributes:
        path: path of the file.
        run: the conversion; weights of its float model are read when they are needed.
        float_bytes: size of the weights of the float model.
        measured: errors of the outputs of the file; None where it was too large to run.
        examples: a sample, and a batch, as the file takes them.
        batches: returns the batches of data for it, as those of the calibration.
        model_notes: sentences on the whole model, for the user; blocks have their own.
    """

    path: Path
    run: BlockwiseRun
    float_bytes: int
    measured: Estimate | None
    examples: tuple[Batch, Batch]
    batches: Callable[[Iterable[Any]], Iterator[Batch]]
    model_notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[BlockRecord, ...]:
        """Records of all blocks, in order."""
        return tuple(self.run.checkpoint.finished)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that running the file takes, and running the float model: a session holds packed
        weights next to those it read."""
        return 2 * self.size_bytes, 2 * self.float_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the file with its weights."""
        return sum(file.stat().st_size for file in model_files(self.path))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user; each one of a block once."""
        counts = Counter(note for block in self.blocks for note in block.notes)
        of_blocks = (f"{n} (in {k} blocks)" if k > 1 else n for n, k in counts.items())
        return (*self.model_notes, *of_blocks)

    @property
    def verification(self) -> Verification:
        """The checks of all blocks, and the errors of the model's outputs."""
        checks = [block.checks for block in self.blocks]
        exactness = [each.exactness for each in checks if each.exactness is not None]
        complete = len(exactness) == len(checks)
        rows = tuple(row for each in checks for row in each.coverage.rows)
        estimate = self.measured or self._estimate()
        return Verification(
            Parity.joined([each.parity for each in checks]),
            Exactness.joined(exactness) if complete else None,
            Coverage(checks[0].coverage.runtime, rows),
            Fidelity(estimate.samples, (), estimate=estimate),
        )

    def _estimate(self) -> Estimate:
        """Return the errors of the outputs, as they are to be expected on new data."""
        known = {name: f for block in self.blocks for name, f in block.estimates.items()}
        names = self.run.whole.outputs
        outputs = tuple(OutputEstimate(n, *known[n]) for n in names if n in known)
        own = [b.samples for b in self.blocks if not b.sqnr.keys().isdisjoint(names)]
        kind = self.run.kind
        return Estimate(min(own, default=0), kind, outputs, "the simulation of the blocks")


def blocks_table(blocks: Sequence[BlockRecord]) -> str:
    """Return the changes and the SQNR of each block."""
    rows = [
        (
            block.name,
            str(sum(count for _, count, _ in block.changes)),
            group_names([f"{name} {decibels_text(db)}" for name, db in block.sqnr.items()]),
        )
        for block in blocks
    ]
    return number_texts.table(("block", "changes", "SQNR of its results"), rows, align="lrl")


def changes_of(
    blocks: Sequence[BlockRecord], arrays: Mapping[str, Mapping[str, torch.Tensor]] | None = None
) -> tuple[Change, ...]:
    """Return the changes of the steps, summed over blocks. arrays: of each step, see `Change`."""
    counts = dict[tuple[str, str], int]()
    for step, count, reason in (change for block in blocks for change in block.changes):
        counts[step, reason] = counts.get((step, reason), 0) + count
    known = arrays or {}
    return tuple(
        Change(step, count, reason, known.get(step, {})) for (step, reason), count in counts.items()
    )
