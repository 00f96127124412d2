"""The tensor that a layer's result is added to, as at the end of a residual block."""

from __future__ import annotations

import torch

from qtool.core.graph.executor import Executor

aten = torch.ops.aten


def residual_input(run: Executor, number: int) -> int | None:
    """Return the number of the tensor that a result is added to, or None if it has another use.

    The layer can then compensate the error of that tensor, so that the sum equals the float
    network's. Quantization points and reshapes in between are skipped.
    """
    while len(run.calls[number].users) == 1 and number not in run.outputs:
        reader = run.calls[run.calls[number].users[0]]
        if reader.point is not None or reader.function is aten.reshape.default:
            number = reader.index
            continue
        others = [i for _, i in reader.operands if i != number]
        plain = reader.function is aten.add.Tensor and not reader.keywords
        return others[0] if plain and len(others) == 1 else None
    return None


def residual_target(
    result: torch.Tensor, float_values: torch.Tensor, quantized_values: torch.Tensor
) -> torch.Tensor:
    """Return the target of a layer: its float result, plus the error of the tensor it is added to.

    Args:
        result: float result of the layer.
        float_values, quantized_values: that tensor in both networks; the error of one that is
            broadcast counts as zero.
    """
    if float_values.numel() != result.numel():
        return result
    return result + (float_values - quantized_values).reshape(result.shape)
