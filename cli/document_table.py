"""What each command prints with --json: docs/report.md and a test come from this table.

A document is one JSON object: the fields of `Envelope`, then those of the parts of its command.
"""

from __future__ import annotations

from qtool.core import plugins
from qtool.core.on_use import load

_OWN = "qtool.cli.documents"
_WRITTEN = (
    f"{_OWN}:WrittenFile",
    "qtool.api.quantized_file:QuantizedFile",
    f"{_OWN}:Blocks",
    "qtool.verification:Verification",
    f"{_OWN}:Outcome",
)
_CALIBRATION = (f"{_OWN}:CalibrationFile",)
_REPORT = ("qtool.evaluation.report.report:Report",)
_TABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "quantize": (_WRITTEN,),
    "calibrate": (_CALIBRATION,),
    "merge": (_CALIBRATION,),
    "convert": (_WRITTEN,),
    "verify": (("qtool.verification:FileCheck",), ("CpuComparison",)),
    "gate": (("qtool.evaluation.gate.result:GateResult",),),
    "evaluate": (("qtool.evaluation.evaluation:Evaluation",),),
    "report": (_REPORT,),
    "compare": (_REPORT,),
    "bench": (("qtool.evaluation.bench:Bench",),),
    "generate": (("qtool.evaluation.generation:Generation",),),
    "tune": ((f"{_OWN}:WrittenFile", "TunedModel"),),
    "inspect": (
        ("qtool.evaluation.file_contents:ModelContents",),
        ("qtool.evaluation.file_contents:CalibrationContents",),
        ("qtool.evaluation.measure.provenance:Provenance",),
    ),
}
"""Command -> the alternatives of what it prints, each the parts of one object. A name without a
module is one of `Plugin.documents`."""


def documents() -> dict[str, tuple[tuple[type, ...], ...]]:
    """Return the table with the dataclasses, all of which are imported for it."""
    return {
        command: tuple(tuple(map(_dataclass, names)) for names in alternatives)
        for command, alternatives in _TABLE.items()
    }


def _dataclass(name: str) -> type:
    return load(name) if ":" in name else plugins.part("documents", name)
