"""Names of the steps of a conversion, and the names they had in earlier versions.

Recipes, calibrations and ONNX files written by earlier versions hold the former names. Every reader
translates them with `current_step_name`. Digests that were stored under a former name are computed
with `former_step_name`, so that they stay valid.
"""

from __future__ import annotations

FORMER_NAMES = {
    "equalize": "cross-layer-equalization",
    "smooth": "smooth-quant",
    "round": "gptq",
    "bias": "bias-correction",
    "refit": "weight-scale-search",
    "renorm": "batch-norm-reestimation",
    "learn": "learned-scales",
}
"""Former name -> name."""

_FORMER_NAME_OF = {name: former for former, name in FORMER_NAMES.items()}


def current_step_name(name: str) -> str:
    """Return the name of a step, from that name or from its former one."""
    return FORMER_NAMES.get(name, name)


def former_step_name(name: str) -> str:
    """Return the former name of a step, or the name itself where it never had another one."""
    return _FORMER_NAME_OF.get(name, name)
