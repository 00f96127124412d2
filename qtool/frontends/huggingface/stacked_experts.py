"""Weights of experts that files store one by one, and models of transformers stack.

transformers stacks them while it loads a folder. A model larger than memory is read tensor by
tensor, so each stacked tensor is put together here from its parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_PART = re.compile(r"(?P<scope>.+\.experts)\.(?P<expert>\d+)\.(?P<layer>\w+)\.weight")
_STACKS: Mapping[str, tuple[str, int]] = {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1),
    "w2": ("down_proj", 0),
}
"""Layer of an expert in files -> stacked parameter, and place of its rows in that: of Qwen-like and
of Mixtral-like models."""

_FORMER = ".block_sparse_moe."
"""The scope of mixtures in files of Mixtral; ".mlp." in its model."""

Parts = Sequence[Sequence[str]]
"""Names of tensors: those of each expert, in the order of their rows."""


def stacked_experts(names: Collection[str]) -> dict[str, Parts]:
    """Return the stacked parameters of a model -> their parts, of tensors in its files."""
    stacks: dict[str, dict[int, dict[int, str]]] = {}
    for name in names:
        part = _PART.fullmatch(name)
        if part is None or part["layer"] not in _STACKS:
            continue
        stack, place = _STACKS[part["layer"]]
        own = stacks.setdefault(model_name(f"{part['scope']}.{stack}"), {})
        own.setdefault(int(part["expert"]), {})[place] = name
    return {
        stack: [[parts[place] for place in sorted(parts)] for _, parts in sorted(experts.items())]
        for stack, experts in stacks.items()
    }


def model_name(name: str) -> str:
    """Return the name that a model has for a tensor of a mixture in its files."""
    return name.replace(_FORMER, ".mlp.")
