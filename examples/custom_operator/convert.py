"""Converts the tagger with its operator kept whole, and shows what was made of it.

python -m examples.custom_operator.convert tagger.int8.onnx [--python]
"""

from __future__ import annotations

import sys

import torch

import qtool
from examples.custom_operator.mgu import cpp_form, python_form, register
from examples.custom_operator.network import Tagger

__all__ = ["main"]


def main(path: str, python: bool = False) -> None:
    """Writes the int8 file of a tagger with random weights; `python`: nothing is compiled."""
    operator = python_form if python else cpp_form()
    register(operator)
    torch.manual_seed(0)
    model = Tagger(operator).eval()
    quantized = qtool.quantize(model, [torch.randn(16, 12, 8) for _ in range(4)])
    print(quantized.plan)
    print(quantized.export(path))


if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if a != "--python"]
    main(names[0], python="--python" in sys.argv)
