"""The tensors of a program by the user's names."""

import torch

from qtool.backends.onnxruntime.integer_engine import Program


def labelled_values(program: Program, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return every tensor of a run by the user's name: codes where it is quantized."""
    return {program.labels.get(n, n): t for n, t in program.values(*inputs).items()}
