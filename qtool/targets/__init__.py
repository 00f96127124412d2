"""Targets: one file per runtime on a kind of hardware."""

from qtool.errors import PlanError
from qtool.targets.base import KernelRule, Target
from qtool.targets.onnxruntime_x86 import ONNXRUNTIME_X86

__all__ = ["DEFAULT", "TARGETS", "KernelRule", "Target", "target"]

TARGETS = {t.name: t for t in (ONNXRUNTIME_X86,)}
DEFAULT = ONNXRUNTIME_X86.name


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        PlanError: there is none; the message lists those there are.
    """
    if name not in TARGETS:
        raise PlanError(f"unknown target '{name}'; there are: {', '.join(TARGETS)}")
    return TARGETS[name]
