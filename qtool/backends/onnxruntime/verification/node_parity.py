"""Compare each node of an exported file with the plan, whatever the depth of the network.

Differences between two right ways to compute a network grow: one code that rounds the other way in
the first layer becomes a hundred others in the twentieth. No limit on the outputs of a deep network
can tell them from an error. So each node gets the values that the file itself, run as written, has
at its inputs:

- what the plan computes in torch between two points has to round to the codes of the file: within
  half a code, plus float32 noise (`simulation_parity`);
- an integer kernel, which may round elsewhere, gives the codes of the file as written or their
  neighbours (`kernel_parity`);
- a float part that the runtime has optimised gives what it gives as written (`kernel_parity`).
  MatMulNBits runs in float there: the file says that it may round its input to int8.

What passes is right by induction. That the runtime's integer kernels are the ones compared here is
shown by `bit_exactness`, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from qtool.backends.onnx.reading import name_of, values_read
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.kernel_parity import compare_kernels
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.operator_kinds import tensors_that_jump
from qtool.planning.fake_quantize import quant_points
from qtool.simulation.simulation_parity import compare_points
from qtool.verification.parity import NodeParity

Arrays = Sequence[np.ndarray[Any, Any]]


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
    compared, wrong = compare_points(module, batch, named, values, discontinuous)
    if program is not None:
        program = exported.program_as_written(program)
        codes = {n: program.from_file_codes(n, t) for n, t in values.items()}
        inputs = dict(zip(program.inputs, map(torch.from_numpy, arrays), strict=True))
        known = {**program.constants, **codes, **inputs}
        kernels, wrong_kernels = compare_kernels(program, known, discontinuous)
        compared, wrong = compared + kernels, [*wrong, *wrong_kernels]
    return NodeParity(batch.size, compared, tuple(wrong)), outputs
