"""Layers and plan of a quantized model, for a report on its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch, to_tensor
from qtool.core.errors import QtoolError
from qtool.core.progress import Bars
from qtool.core.store import Store
from qtool.core.types import Array
from qtool.evaluation import plan_summary
from qtool.evaluation.measure.layer_errors import Sensitivity
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.sensitivity import measure_sensitivity
from qtool.verification import Coverage, planned_coverage


class PlannedLayers:
    """Implements `LayerAnalysis`."""

    def __init__(self, quantized: Quantized) -> None:
        self._quantized = quantized

    def planned_coverage(self) -> Coverage:
        return planned_coverage(self._quantized.plan)

    def fields(
        self,
        store: Store,
        batches: Sequence[Mapping[str, Array]],
        options: ReportOptions,
        bars: Bars,
    ) -> dict[str, Any]:
        quantized, layers, note = self._quantized, None, ""
        bar = bars("measuring layers", None)
        tensors = [Batch((), {n: to_tensor(a) for n, a in each.items()}) for each in batches]
        try:
            layers = measure_sensitivity(
                quantized, tensors, budget=options.budget, store=store, progress=bar
            )
        except QtoolError as error:
            note = str(error)
        return {
            "layers": layers,
            "layers_note": note,
            "edges": plan_summary.edge_facts(quantized, _histograms(layers)),
            "notes": tuple(quantized.notes),
            "rewrites": quantized.plan.rewrites,
            "plan": plan_summary.plan_rows(quantized),
        }


def _histograms(layers: Sensitivity | None) -> dict[str, Any]:
    measured = layers.layers if layers else ()
    return {e.tensor: e.activation for e in measured if e.activation}
