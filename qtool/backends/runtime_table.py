"""The runtimes that targets name."""

from __future__ import annotations

from collections.abc import Mapping

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.openvino.runtime import OPENVINO
from qtool.backends.runtime import Runtime

RUNTIMES: Mapping[str, Runtime] = {r.name: r for r in (ONNXRUNTIME, OPENVINO)}


def runtime(name: str | None) -> Runtime | None:
    """Return the runtime of a target, None for a target whose runtime cannot run here."""
    return None if name is None else RUNTIMES[name]
