"""Which targets this machine has the kernels of."""

from __future__ import annotations

from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.planning.targets import Target


def runs_here(chosen: Target) -> bool:
    """Return whether ONNX Runtime on this machine has the kernels that a target is for."""
    fits = not chosen.machines or machine_profile() in chosen.machines
    return chosen.runtime == "onnxruntime" and fits
