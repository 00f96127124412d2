"""The integer program: a list of bound kernels, and its executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qtool.core.errors import DataError
from qtool.core.quant_params import QuantParams, torch_dtype

Kernel = Callable[..., Any]
"""Takes tensors of codes or floats, returns a tensor, or a tuple for several outputs."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """One kernel call of a program.

    Attributes:
        name: name of the node.
        kind: "integer", "move", "quantize", "dequantize", "sum" (of floats: the same on every
            processor) or "float".
        kernel: takes the inputs.
        inputs: names of tensors.
        outputs: names of tensors; several only for a float part of the model.
        node_count: the nodes of the model that it runs.
    """

    name: str
    kind: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node_count: int = 1

    @property
    def output(self) -> str:
        return self.outputs[0]

    def run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return a result per output."""
        results = self.kernel(*inputs)
        return results if len(self.outputs) > 1 else (results,)


@dataclass(frozen=True, eq=False)
class Program:
    """A model in integers. Call it with float32 inputs, or with codes where inputs are quantized.

    A call returns one tensor per output: codes (uint8 or int8) where the output is quantized,
    float32 where the last kernel returns float. The result is exact under the arithmetic of
    `profile` wherever no instruction is of the kind "float".

    Attributes:
        profile: name of the numerics profile.
        inputs, outputs: names of tensors, in the order of the model.
        instructions: instructions in an order in which they can run.
        constants: tensor name -> value.
        params: tensor name -> quantization parameters.
        labels: tensor name -> the user's name.
        held_as_uint8: tensors whose codes are int8 in the file, and uint8 here and in the runtime.
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
        """The number of nodes that run in float, in the runtime's kernels."""
        return sum(s.node_count for s in self.instructions if s.kind == "float")

    @property
    def influenced_by_float(self) -> frozenset[str]:
        """Tensors that depend on a float node."""
        names: set[str] = set()
        for instruction in self.instructions:
            if instruction.kind == "float" or names & set(instruction.inputs):
                names |= set(instruction.outputs)
        return frozenset(names)

    def from_file_codes(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Convert a tensor from its codes in the file to those of this program."""
        return (
            (values.to(torch.int16) + 128).to(torch.uint8) if name in self.held_as_uint8 else values
        )

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self._run(inputs, keep=False)
        return tuple(values[name] for name in self.outputs)

    def values(
        self, *inputs: torch.Tensor, float_results: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Return every tensor of a run by its name in the file: codes where it is quantized.

        Args:
            inputs: arrays for the inputs of the program.
            float_results: results of its float instructions, which do not run then.
        """
        return self._run(inputs, keep=True, float_results=float_results)

    @torch.inference_mode()
    def wrong_kernels(self, values: Mapping[str, torch.Tensor]) -> list[str]:
        """Return the kernels that give other results than a runtime for the runtime's own inputs.

        Args:
            values: tensors of the runtime by their names in the file; a kernel runs if its inputs
                and its output are among them.
        """
        known, wrong = {**self.constants, **values}, []
        for kernel in self.instructions:
            computed = kernel.output in values and all(n in known for n in kernel.inputs)
            if kernel.kind == "float" or not computed:
                continue
            result, *_ = kernel.run([known[n] for n in kernel.inputs])
            if not _same(result, values[kernel.output]):
                wrong.append(self.labels.get(kernel.output, kernel.output))
        return wrong

    @torch.inference_mode()
    def first_difference(
        self, values: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> str | None:
        """Return the first tensor, by the user's name, that is not that of a runtime; None: none.

        Args:
            values: tensors of the runtime by their names in the file.
            inputs: arrays for the inputs of the program.
        """
        own = self._start(inputs)
        for instruction in self._steps(own, self._last_use()):
            name = instruction.output
            if name in values and not torch.equal(values[name], own[name]):
                return self.labels.get(name, name)
        return None

    @torch.inference_mode()
    def _run(
        self,
        inputs: Sequence[torch.Tensor],
        keep: bool,
        float_results: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        values = self._start(inputs)
        for _ in self._steps(values, {} if keep else self._last_use(), float_results):
            pass
        return values

    def _start(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values before the first instruction."""
        if len(inputs) != len(self.inputs):
            raise DataError(
                f"the program takes {len(self.inputs)} inputs, not {len(inputs)}: "
                f"{', '.join(self.inputs)}"
            )
        return dict(self.constants) | dict(zip(self.inputs, inputs, strict=True))

    def _steps(
        self,
        values: dict[str, torch.Tensor],
        last: Mapping[int, Sequence[str]],
        float_results: Mapping[str, torch.Tensor] | None = None,
    ) -> Iterator[Instruction]:
        """Run the instructions; yield each one when its results are among the values.

        Args:
            values: known values, which are extended.
            last: number of an instruction -> values to drop behind it.
            float_results: see `values`.
        """
        for i, instruction in enumerate(self.instructions):
            if float_results is not None and instruction.kind == "float":
                values |= {n: float_results[n] for n in instruction.outputs if n in float_results}
                continue
            arguments = [values[n] for n in instruction.inputs]
            output = instruction.output
            if instruction.kind == "quantize" and arguments[0].dtype == self._dtype(output):
                values[output] = arguments[0]  # the input is in codes
            else:
                values |= dict(zip(instruction.outputs, instruction.run(arguments), strict=True))
            yield instruction
            for name in last.get(i, ()):
                del values[name]

    def _dtype(self, name: str) -> torch.dtype:
        return torch_dtype(self.params[name].qtype)

    def _last_use(self) -> dict[int, list[str]]:
        """Return instruction index -> tensors to free after it."""
        last: dict[str, int] = {}
        for i, instruction in enumerate(self.instructions):
            for name in (*instruction.inputs, *instruction.outputs):
                last[name] = i
        needed = {*self.outputs, *self.constants}
        unused: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in needed:
                unused.setdefault(i, []).append(name)
        return unused


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are identical; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
