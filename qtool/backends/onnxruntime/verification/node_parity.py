"""Compare each node of an exported file with the plan, whatever the depth of the network.

Differences between two right ways to compute a network grow: one code that rounds the other way in
the first layer becomes a hundred others in the twentieth. No limit on the outputs of a deep network
can tell them from an error. So each node gets the values that the file itself, run as written, has
at its inputs:

- what the plan computes in torch between two points has to round to the codes of the file: within
  half a code, plus float32 noise (`simulation_parity`);
- an integer kernel, which may round elsewhere, gives the codes of the file as written or their
  neighbours (`_compare_kernels`);
- a float part that the runtime has optimised gives what it gives as written (`_compare_kernels`).
  MatMulNBits runs in float there: the file says that it may round its input to int8.

What passes is right by induction. That the runtime's integer kernels are the ones compared here is
shown by `bit_exactness`, to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx, nn

from qtool.backends.onnx.reading import name_of, values_read
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.graph.float_tolerance import (
    NOISE_FACTOR,
    TOLERANCE,
    distance,
    last_bit_perturbation,
)
from qtool.core.operator_kinds import tensors_that_jump
from qtool.core.types import Array
from qtool.planning.fake_quantize import QuantPoint, quant_points
from qtool.simulation.simulation_parity import CODES, compare_points, is_close
from qtool.verification.parity import NodeParity

Arrays = Sequence[Array]


def compare_nodes(
    exported: ExportedFile, module: nn.Module, batch: Batch, program: Program | None
) -> tuple[NodeParity, Arrays]:
    """Compare a file with the fake-quantized model that it was made from, node by node.

    Args:
        exported: the file.
        module: the fake-quantized model.
        batch: bound to its inputs.
        program: the integer program of the file; None if the runtime's kernels are not known.

    Returns:
        The result, and the outputs of the file as written.

    Raises:
        VerificationError: the runtime does not load the file as written.
    """
    arrays = batch.arrays()
    names = {value_names.quantize(point): None for point in quant_points(module)}
    if program is not None:
        names |= dict.fromkeys(
            tensor for i in program.instructions for tensor in (*i.inputs, *i.outputs)
        )
    outputs, values = exported.tensors_as_written(arrays, names)
    discontinuous = tensors_that_jump(
        (n.op_type, set(map(name_of, values_read(n))), set(map(name_of, n.outputs)))
        for n in exported.qdq.nodes
    )
    named = dict(zip(map(name_of, exported.qdq.outputs), outputs, strict=True))
    planned = {**values, **_without_padding(module, values)}
    compared, wrong = compare_points(module, batch, named, planned, discontinuous)
    if program is not None:
        program = exported.program_as_written(program)
        codes = {n: program.from_file_codes(n, t) for n, t in values.items()}
        inputs = dict(zip(program.inputs, map(torch.from_numpy, arrays), strict=True))
        known = {**program.constants, **codes, **inputs}
        kernels, wrong_kernels = _compare_kernels(program, known, discontinuous)
        compared, wrong = compared + kernels, [*wrong, *wrong_kernels]
    return NodeParity(batch.size, compared, tuple(wrong)), outputs


def _without_padding(
    module: nn.Module, values: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors of the file that have channels of zeros, without these."""
    if not isinstance(module, fx.GraphModule):
        return {}
    points = ((n, G.submodule(module, n)) for n in module.graph.nodes)
    names = {
        value_names.quantize(p.point): G.shape(n) for n, p in points if isinstance(p, QuantPoint)
    }
    return {
        name: values[name][:, : shape[1]]
        for name, shape in names.items()
        if name in values
        and len(shape) > 1
        and isinstance(shape[1], int)
        and values[name].shape[1] > shape[1]
    }


@torch.inference_mode()
def _compare_kernels(
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
        for name, result in zip(kernel.outputs, kernel.run(inputs), strict=True):
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


def _change_of_a_code(
    kernel: Instruction, inputs: Sequence[torch.Tensor], name: str, result: torch.Tensor
) -> float:
    """Return how much a result changes with the last bit of random codes.

    The terms of a product may cancel: then its range says nothing about its rounding.
    """
    if kernel.kind != "integer":
        return 0.0
    generator = torch.Generator().manual_seed(0)
    other = [
        x if x.is_floating_point() else x ^ torch.randint(2, x.shape, generator=generator).to(x)
        for x in inputs
    ]
    changed = kernel.run(other)[kernel.outputs.index(name)]
    return float((changed - result).abs().max()) if changed.numel() else 0.0


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
    if distance(written, result, _change_of_a_code(kernel, inputs, name, result)) <= TOLERANCE:
        return ""
    perturbed = kernel.run([*map(last_bit_perturbation(), inputs)])
    other = perturbed[kernel.outputs.index(name)]
    noise = NOISE_FACTOR * distance(result, other) if result.shape == other.shape else 0.0
    if is_close(written, result, noise if noise < 1 else 0.0, discontinuous):
        return ""
    return f"{CODES * difference:.3g} codes from the file as written, in float"
