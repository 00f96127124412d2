"""Where the nodes of a run were executed, from the profile that ONNX Runtime wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from qtool.core.errors import EmulationError

_CPU = "CPUExecutionProvider"
_KERNEL = "_kernel_time"
_COPIES = ("MemcpyFromHost", "MemcpyToHost")
_NOT_ACTIVATIONS = frozenset(("bool", "int32", "int64", "string", "uint32", "uint64"))
"""Types of shapes, positions, masks and token numbers; floats and 8- or 16-bit codes are
activations."""


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a file are executed.

    Attributes:
        nodes: number of nodes on the provider, copies not counted.
        fallbacks: nodes on the CPU provider that read or give activations, as "name (type)": values
            of a float or code type with more than one element.
        shape_nodes: number of other nodes on the CPU provider: arithmetic of shapes, positions and
            masks.
        copies: number of copies between the providers in a run.
    """

    nodes: int
    fallbacks: tuple[str, ...]
    shape_nodes: int
    copies: int


def placement(profile: Path, runs: int) -> Placement:
    """Return the placement in a profile.

    Args:
        profile: path without the suffix that the runtime adds.
        runs: number of runs in it.

    Raises:
        EmulationError: there is no profile.
    """
    file = next(profile.parent.glob(f"{profile.name}*.json"), None)
    if file is None:
        raise EmulationError("the runtime wrote no profile")
    return _placement(json.loads(file.read_text(encoding="utf-8")), runs)


def _placement(events: Iterable[Mapping[str, Any]], runs: int) -> Placement:
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_KERNEL)]
    copies = sum(e["args"]["op_name"] in _COPIES for e in kernels)
    nodes = {_node(e): e["args"] for e in kernels if e["args"]["op_name"] not in _COPIES}
    cpu = {name: args for name, args in nodes.items() if args["provider"] == _CPU}
    fallbacks = tuple(f"{name} ({op})" for (name, op, _), a in cpu.items() if _has_activations(a))
    return Placement(
        len(nodes) - len(cpu), fallbacks, len(cpu) - len(fallbacks), round(copies / max(runs, 1))
    )


def _node(event: Mapping[str, Any]) -> tuple[str, str, str]:
    args = event["args"]
    return event["name"].removesuffix(_KERNEL), args["op_name"], args.get("node_index", "")


def _has_activations(args: Mapping[str, Any]) -> bool:
    tensors = (*(args.get("input_type_shape") or ()), *(args.get("output_type_shape") or ()))
    return any(
        dtype not in _NOT_ACTIVATIONS and prod(shape) > 1
        for tensor in tensors
        for dtype, shape in tensor.items()
    )
