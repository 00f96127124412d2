"""Targets: a file per runtime, with a table for each kind of hardware."""

from qtool.core import plugins
from qtool.core.errors import ExportError, PlanError
from qtool.core.on_use import Table
from qtool.core.option_names import (
    NATIVE,
    TARGET_MACHINES,
    TFLITE_SUFFIX,
    unknown_name,
)
from qtool.core.option_names import TARGETS as NAMES
from qtool.core.remedies import Argument, CallEdit
from qtool.planning.targets.base import WEIGHT_ONLY_SCHEMES, KernelRule, Target

__all__ = [
    "DEFAULT",
    "TARGETS",
    "WEIGHT_ONLY_SCHEMES",
    "KernelRule",
    "Target",
    "check_format",
    "register",
    "target",
    "target_for",
]

_ROWS = {
    "onnxruntime": "onnxruntime:ONNXRUNTIME",
    "onnxruntime-x86-vnni": "onnxruntime:ONNXRUNTIME_X86_VNNI",
    "onnxruntime-arm": "onnxruntime:ONNXRUNTIME_ARM",
    "onnxruntime-web": "onnxruntime_web:ONNXRUNTIME_WEB",
    "openvino": "openvino:OPENVINO",
    "tensorrt": "tensorrt:TENSORRT",
    "qnn": "qnn:QNN",
}
_ALL = {name: f"{__name__}.{where}" for name, where in _ROWS.items()}
_ALL |= plugins.parts("targets")
TARGETS = Table[Target]({name: _ALL[name] for name in NAMES if name in _ALL})
DEFAULT = NAMES[0]
_FORMAT_TARGETS = {TFLITE_SUFFIX[1:]: "tflite"}
"""Format of a plugin -> the target of its files."""


def target(name: str) -> Target:
    """Return the target of that name.

    Raises:
        InstallError: this installation lacks the plugin of the target.
        PlanError: unknown name; the message lists the known ones.
    """
    if str(name) not in TARGETS:  # of any type
        if name in NAMES:
            raise plugins.missing(f"the target '{name}'")
        raise PlanError(unknown_name("target", name, TARGETS))
    return TARGETS[name]


def register(new: Target) -> None:
    """Add a target.

    Raises:
        PlanError: the name is taken.
    """
    if new.name in TARGETS:
        raise PlanError(
            f"target '{new.name}' is registered already", CallEdit("choose another name")
        )
    TARGETS[new.name] = new
    here = tuple(sorted(new.machines)) if new.runtime == NATIVE else None
    if here != ():
        TARGET_MACHINES[new.name] = here


def check_format(name: str, file_format: str) -> None:
    """Check before calibration that files for a target can have a format.

    Raises:
        ExportError: the target does not support the format.
        PlanError: unknown target.
    """
    chosen = target(name)
    if file_format not in chosen.file.formats:
        known = ", ".join(chosen.file.formats)
        other = _first_with(file_format)
        choose = [Argument("--target", other, f"{{}} supports {file_format}")] if other else []
        raise ExportError(
            f"target {name} does not support format '{file_format}'; it supports: {known}", *choose
        )


def target_for(file_format: str, name: str | None, default: str = DEFAULT) -> str:
    """Return the name of the target of a file.

    Args:
        file_format: format of the file.
        name: the target that the user names; None: `default` if it has the format, else the first
            target with it.
        default: name of a target.

    Raises:
        ExportError: the target does not support the format.
        PlanError: unknown target.
    """
    if name is None:
        has_format = file_format in target(default).file.formats
        name = default if has_format else _first_with(file_format) or default
    check_format(name, file_format)
    return name


def _first_with(file_format: str) -> str | None:
    """Return the name of the target that is named for files of a format; None without any."""
    if file_format in _FORMAT_TARGETS:
        return target(_FORMAT_TARGETS[file_format]).name
    return next((n for n, t in TARGETS.items() if file_format in t.file.formats), None)
