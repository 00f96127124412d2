"""Targets: one file per runtime on a kind of hardware."""

from qtool.errors import ExportError, PlanError
from qtool.targets.base import STORED, KernelRule, Target
from qtool.targets.onnxruntime_arm import ONNXRUNTIME_ARM
from qtool.targets.onnxruntime_novnni import ONNXRUNTIME_X86_NOVNNI
from qtool.targets.onnxruntime_x86 import ONNXRUNTIME_X86
from qtool.targets.openvino import OPENVINO
from qtool.targets.qnn import QNN
from qtool.targets.tensorrt import TENSORRT
from qtool.targets.tflite import TFLITE

__all__ = [
    "DEFAULT",
    "STORED",
    "TARGETS",
    "KernelRule",
    "Target",
    "check_format",
    "register",
    "target",
]

_CPU = (ONNXRUNTIME_X86, ONNXRUNTIME_X86_NOVNNI, ONNXRUNTIME_ARM)
_ALL = (*_CPU, OPENVINO, TENSORRT, TFLITE, QNN)
TARGETS = {t.name: t for t in _ALL}
DEFAULT = ONNXRUNTIME_X86.name


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        PlanError: there is none; the message lists those there are.
    """
    if str(name) not in TARGETS:  # whatever it is
        raise PlanError(f"unknown target '{name}'; there are: {', '.join(TARGETS)}")
    return TARGETS[name]


def register(added: Target) -> None:
    """Adds a target. Raises PlanError when its name is taken."""
    if added.name in TARGETS:
        raise PlanError(f"target '{added.name}' is registered already; give it a name of its own")
    TARGETS[added.name] = added


def check_format(name: str, wanted: str) -> None:
    """Before anything is calibrated.

    Raises:
        ExportError: files for that target do not have this form. PlanError: unknown target.
    """
    chosen = target(name)
    if wanted not in chosen.file.formats:
        known = ", ".join(chosen.file.formats)
        raise ExportError(f"target {name} takes no format '{wanted}'; it takes: {known}")
