"""Solutions of layers, in memory and block by block: of one layer, and the record of all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
from safetensors.torch import load, save

from qtool.algorithms.exclusive_layers import Layer
from qtool.distributed import Ranks


@dataclass(frozen=True, eq=False)
class LayerSolution:
    """New constants of one layer, or of some of its outputs.

    Attributes:
        weight: weight on its grid; None where rounding to nearest is better.
        bias: None where the layer has none.
        note: a sentence for the user, or "".
        steps: names of the steps that solved the weight or parts of it.
    """

    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    note: str = ""
    steps: frozenset[str] = frozenset()

    def to_bytes(self) -> bytes:
        constants = {"weight": self.weight, "bias": self.bias}
        tensors = {name: t.contiguous() for name, t in constants.items() if t is not None}
        return save(tensors, {"rest": json.dumps([self.note, *sorted(self.steps)])})

    @classmethod
    def from_bytes(cls, data: bytes) -> LayerSolution:
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors, (note, *steps) = load(data), json.loads(head["__metadata__"]["rest"])
        return cls(tensors.get("weight"), tensors.get("bias"), note, frozenset(steps))


def broadcast_solution(ranks: Ranks, own: LayerSolution | None, source: int) -> LayerSolution:
    """Return the solution of rank `source` on all ranks; None of the others."""
    if own is not None and not ranks.is_distributed:
        return own
    return LayerSolution.from_bytes(
        ranks.broadcast(None if own is None else own.to_bytes(), source)
    )


@dataclass
class SolvedLayers:
    """What solving layers has changed.

    Attributes:
        constants: attribute of the module -> new value.
        float_constants: those of `constants` that have no codes in the file.
        steps: attribute of a weight -> names of the steps that solved it.
        notes: sentences for the user.
    """

    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    float_constants: dict[str, torch.Tensor] = field(default_factory=dict)
    steps: dict[str, frozenset[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, layer: Layer, solution: LayerSolution) -> dict[int, torch.Tensor]:
        """Record a solution; return the new constants by place: 1 is the weight, 2 the bias."""
        self.notes += [solution.note] if solution.note else []
        new = dict[int, torch.Tensor]()
        if solution.weight is not None:
            new[1] = solution.weight
            self.steps[layer.attribute(1)] = solution.steps
        if solution.bias is not None:
            new[2] = layer.stored_bias(solution.bias)
            if layer.bias_params is None:
                self.float_constants[layer.attribute(2)] = new[2]
        self.constants |= {layer.attribute(place): value for place, value in new.items()}
        return new
