"""The float model as a TFLite file."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.tflite.export.convert import to_tflite
from qtool.backends.tflite.file import save
from qtool.core.graph import FloatGraph
from qtool.core.types import ObserverSpec
from qtool.core.versions import own_version
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import Recipe


def write_float(graph: FloatGraph, path: str | Path, target_name: str) -> Path:
    """Write the canonical graph in float, and return the path.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    plan = QuantPlan(target_name, ObserverSpec("minmax"), Recipe(), (), ())
    save(to_tflite(graph.module, graph, plan, {"version": own_version()}).model, path)
    return Path(path)
