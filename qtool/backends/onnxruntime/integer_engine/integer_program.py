"""The integer program: a list of bound kernels, and its executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qtool.core.errors import DataError
from qtool.core.types import QuantParams


@dataclass(frozen=True, eq=False)
class Instruction:
    """One kernel call. kind: "integer", "move", "quantize", "dequantize" or "float".

    outputs: more than one only for a float part of the model, of so many `nodes`.
    """

    name: str
    kind: str
    kernel: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node_count: int = 1

    @property
    def output(self) -> str:
        return self.outputs[0]


@dataclass(frozen=True, eq=False)
class Program:
    """A model in integers. Call it with float32 inputs, or with codes where inputs are quantized.

    Returns one tensor per output: its codes (uint8 or int8) where the output is quantized, float32
    where the last kernel gives float. Exact under the arithmetic of `profile` wherever no step is
    of the kind "float".

    params: what the codes of each quantized tensor mean. labels: tensor name -> the user's name.
    lifted: tensors whose codes are int8 in the file, and uint8 here and in the runtime.
    """

    profile: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    constants: Mapping[str, torch.Tensor]
    params: Mapping[str, QuantParams]
    labels: Mapping[str, str]
    held_as_uint8: frozenset[str] = frozenset()

    @property
    def float_nodes(self) -> int:
        """How many nodes run in float, in the runtime's kernels."""
        return sum(s.node_count for s in self.instructions if s.kind == "float")

    @property
    def influenced_by_float(self) -> frozenset[str]:
        """Tensors that a node in float has a part in."""
        found: set[str] = set()
        for step in self.instructions:
            if step.kind == "float" or found & set(step.inputs):
                found |= set(step.outputs)
        return frozenset(found)

    def from_file_codes(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """A tensor as the file has it, as this program has it."""
        return (
            (values.to(torch.int16) + 128).to(torch.uint8) if name in self.held_as_uint8 else values
        )

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self._run(inputs, keep=False)
        return tuple(values[name] for name in self.outputs)

    def trace(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every tensor of a run by the user's name: codes where it is quantized."""
        values = self.values(*inputs)
        return {self.labels.get(name, name): t for name, t in values.items()}

    def values(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every tensor of a run by its name in the file: codes where it is quantized."""
        return self._run(inputs, keep=True)

    @torch.inference_mode()
    def _run(self, inputs: Sequence[torch.Tensor], keep: bool) -> dict[str, torch.Tensor]:
        if len(inputs) != len(self.inputs):
            raise DataError(
                f"{len(inputs)} inputs given, the program takes {len(self.inputs)}: "
                f"{', '.join(self.inputs)}"
            )
        values = dict(self.constants) | dict(zip(self.inputs, inputs, strict=True))
        last = {} if keep else self._last_use()
        for i, step in enumerate(self.instructions):
            arguments = [values[n] for n in step.inputs]
            if step.kind == "quantize" and arguments[0].dtype == self._dtype(step.output):
                values[step.output] = arguments[0]  # given in codes
            else:
                found = step.kernel(*arguments)
                found = found if len(step.outputs) > 1 else (found,)
                values |= dict(zip(step.outputs, found, strict=True))
            for name in last.get(i, ()):
                del values[name]
        return values

    def _dtype(self, name: str) -> torch.dtype:
        return self.params[name].qtype.torch_dtype

    def _last_use(self) -> dict[int, list[str]]:
        """Step number -> tensors that nobody reads after it: memory is freed as the run goes."""
        last: dict[str, int] = {}
        for i, step in enumerate(self.instructions):
            for name in (*step.inputs, *step.outputs):
                last[name] = i
        kept = {*self.outputs, *self.constants}
        found: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in kept:
                found.setdefault(i, []).append(name)
        return found
