"""Compare each kernel of the integer program with the file as written, on the file's own values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction
from qtool.core.graph.float_tolerance import (
    NOISE_FACTOR,
    TOLERANCE,
    distance,
    last_bit_perturbation,
)
from qtool.simulation.simulation_parity import CODES, is_close


def compare_kernels(
    program: Program, values: Mapping[str, torch.Tensor], discontinuous: Collection[str]
) -> tuple[int, list[str]]:
    """Run each kernel on the inputs that it has in the file as written.

    Args:
        program: the integer program of the file.
        values: tensors of the file as written, by name.
        discontinuous: names of tensors whose values may jump, see `parity_tolerance`.

    Returns:
        The number of kernels compared, and those that give other results, each with the difference.
    """
    count, wrong = 0, list[str]()
    for kernel in program.instructions:
        known = all(n in values for n in kernel.inputs) and any(o in values for o in kernel.outputs)
        if not known:
            continue
        inputs = [values[n] for n in kernel.inputs]
        if kernel.kind == "quantize" and not inputs[0].is_floating_point():
            continue  # an input of the model in codes
        count += 1
        for name, result in zip(kernel.outputs, _run(kernel, inputs), strict=True):
            if name not in values:
                continue
            if name in program.params:
                difference = _code_difference(result, values[name])
            else:
                jumps = name in discontinuous
                difference = _float_difference(kernel, inputs, name, result, values[name], jumps)
            if difference:
                wrong.append(f"{kernel.name or program.labels.get(name, name)} ({difference})")
                break
    return count, wrong


def _run(kernel: Instruction, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    with torch.inference_mode():
        result = kernel.kernel(*inputs)
    results: Sequence[torch.Tensor] = result if len(kernel.outputs) > 1 else (result,)
    return results


def _code_difference(result: torch.Tensor, written: torch.Tensor) -> str:
    """Describe a difference of more than one code; empty if there is none."""
    if result.shape != written.shape:
        return f"of shape {list(result.shape)}, not {list(written.shape)}"
    codes = int((result.long() - written.long()).abs().max()) if result.numel() else 0
    return "" if codes <= 1 else f"{codes} codes from the file as written"


def _float_difference(
    kernel: Instruction,
    inputs: Sequence[torch.Tensor],
    name: str,
    result: torch.Tensor,
    written: torch.Tensor,
    discontinuous: bool,
) -> str:
    """Describe a difference that float32 rounding does not explain; empty if there is none."""
    difference = distance(written, result)
    if difference <= TOLERANCE:
        return ""
    perturbed = _run(kernel, list(map(last_bit_perturbation(), inputs)))
    other = perturbed[kernel.outputs.index(name)]
    noise = NOISE_FACTOR * distance(result, other) if result.shape == other.shape else 0.0
    if is_close(written, result, noise if noise < 1 else 0.0, discontinuous):
        return ""
    return f"{CODES * difference:.3g} codes from the file as written, in float"
