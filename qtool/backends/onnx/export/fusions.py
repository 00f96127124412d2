"""Fuses operators of a graph about to be written to those that the target has one kernel for."""

from __future__ import annotations

from torch import fx

from qtool.core import graph as G
from qtool.passes import FOR_FILES, run_passes
from qtool.planning.targets import Target


def fuse(module: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Return a fused copy of a graph; the graph itself where the target fuses nothing.

    Raises:
        PassError: a fusion broke the contract of passes.
    """
    if not target.file.fusions:
        return module
    fused = G.clone(module)
    run_passes(fused, [FOR_FILES[name] for name in target.file.fusions])
    return fused
