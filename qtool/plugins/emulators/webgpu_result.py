"""Results of a file on the WebGPU provider, compared with the CPU provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from qtool.core.number_texts import db, percent, quantity, table
from qtool.core.records import to_json
from qtool.core.summary import Summarized, Summary
from qtool.plugins.emulators.placement import Placement

FLOAT_DB, ROUNDED_DB = 80.0, 40.0
"""Least SQNR of an output in float, and in a file that rounds activations: the last bit of a float
moves a code by one."""
_NAMED = 3  # nodes and outputs that are named
_NOT_JUDGED = (
    "not judged here: kernels with subgroups, which real adapters have; float16, which this one "
    "does not have; speed"
)


@dataclass(frozen=True)
class ProviderOutput:
    """One output on both providers.

    Attributes:
        name: its name.
        sqnr_db: SQNR against the CPU provider; None if nothing differs.
        rows: rows whose largest value was compared, along the last axis of an output of two or
            three dimensions; 0 for others.
        same_argmax: number of them whose largest value is in the same place.
    """

    name: str
    sqnr_db: float | None
    rows: int
    same_argmax: int


@dataclass(frozen=True)
class NodeDifference:
    """The first node, in the order of the graph, whose result is below the limit.

    Attributes:
        node: its name.
        op: its type.
        tensor: its result.
        sqnr_db: SQNR of the result.
        input_db: SQNR of the worst of its inputs; None if all are equal.
    """

    node: str
    op: str
    tensor: str
    sqnr_db: float
    input_db: float | None

    def __str__(self) -> str:
        from_ = "equal inputs" if self.input_db is None else f"inputs of {db(self.input_db)} dB"
        return f"{self.node} ({self.op}): {db(self.sqnr_db)} dB from {from_}"


@dataclass(frozen=True)
class WebGpuComparison(Summarized):
    """A file on the WebGPU provider, compared with the CPU provider.

    The CPU provider computes MatMulNBits in float (accuracy level 0).

    Attributes:
        file: name of the file.
        samples: number of samples.
        runtime: the runtime with the WebGPU provider, and its version.
        adapter: the adapter that it ran on.
        reference: this machine and its runtime.
        limit_db: the least SQNR of an output: 80 dB, and 40 dB in a file that rounds activations.
        outputs: one for each output.
        placement: where nodes were executed.
        first: the first wrong node, if an output is below the limit; None if returning every
            node's result makes the difference vanish, or if `codes_moved`.
        codes_moved: an output is below the limit by codes that moved by one; every node is right
            for its inputs.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("agrees",)

    file: str
    samples: int
    runtime: str
    adapter: str
    reference: str
    limit_db: float
    outputs: tuple[ProviderOutput, ...]
    placement: Placement
    first: NodeDifference | None
    codes_moved: bool = False

    @property
    def agrees(self) -> bool:
        """Whether every output has the least SQNR, or no node is wrong for its inputs."""
        return self.codes_moved or all(
            o.sqnr_db is None or o.sqnr_db >= self.limit_db for o in self.outputs
        )

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = to_json(self)
        return value

    def table(self) -> str:
        """Return a table of the outputs: the first one, then those with the lowest SQNR."""
        first, *others = self.outputs
        worst = sorted(others, key=lambda o: 1e9 if o.sqnr_db is None else o.sqnr_db)[:_NAMED]
        rows = [(o.name, db(o.sqnr_db), _share(o)) for o in (first, *worst)]
        shown = table(("output", "dB", "same argmax"), rows, align="lrr")
        more = len(others) - len(worst)
        return shown + (f"\n{more} more outputs are at least as close" if more else "")

    def summary(self, title: str | None = None) -> Summary:
        """Return the result in a few lines."""
        place, verb = self.placement, "agrees" if self.agrees else "differs"
        on_cpu = f"{quantity(len(place.fallbacks), 'node')} with activations on the CPU provider"
        nodes = f"{quantity(place.nodes, 'node')} on WebGPU, {on_cpu}"
        if place.fallbacks:
            nodes += f": {_named(place.fallbacks)}"
        copies = quantity(place.copies, "copy").replace("copys", "copies")
        nodes += f"; {place.shape_nodes} of shapes and masks there, {copies} a run"
        rows = [
            ("compared", f"{quantity(self.samples, 'sample')}, {self.runtime} on {self.adapter}"),
            ("with", f"{self.reference}, accuracy level 0"),
            ("nodes", nodes),
        ]
        if self.codes_moved:
            rows.append(("codes", "moved by last bits; each node is right for its inputs"))
        if not self.agrees:
            vanished = "none, when the file returns every node's result"
            rows.append(("first", str(self.first) if self.first else vanished))
        text = f"{verb} on WebGPU (limit {self.limit_db:.0f} dB)"
        return Summary(title or self.file, text, tuple(rows), (_NOT_JUDGED,))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"


def _share(output: ProviderOutput) -> str:
    return percent(output.same_argmax / output.rows) if output.rows else "-"


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
