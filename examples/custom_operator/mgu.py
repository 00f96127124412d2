"""The minimal gated unit as an operator: what torch, ONNX and qtool have to know of it.

The operator computes all states of a sequence, [batch, time, hidden]; mgu.cpp is its C++ form, and
`python_form` the same operator written in Python.
"""

from __future__ import annotations

from typing import Any

import onnx
import torch
from torch.nn import functional as F

import qtool

__all__ = ["FUNCTION", "cpp_form", "python_form", "register"]

FUNCTION = onnx.parser.parse_function("""
    <domain: "cells", opset_import: ["": 18]>
    MGU (x, weight, recurrent, bias) => (states)
    {
        turned = Transpose <perm = [1, 0]> (weight)
        products = MatMul (x, turned)
        projected = Add (products, bias)
        rows = Transpose <perm = [1, 0]> (recurrent)
        of_gate, of_candidate = Split <axis = 1, num_outputs = 2> (rows)
        one = Constant <value = float {1.0}> ()

        batch = Shape <end = 1> (x)
        width = Shape <start = 1> (recurrent)
        begin_sizes = Concat <axis = 0> (batch, width)
        begin = ConstantOfShape <value = float[1] {0.0}> (begin_sizes)

        last, states = Scan <
            num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = step (state, now) => (next, kept) {
                gate_now, candidate_now = Split <axis = 1, num_outputs = 2> (now)
                gate_state = MatMul (state, of_gate)
                gate_sum = Add (gate_now, gate_state)
                gate = Sigmoid (gate_sum)
                gated = Mul (gate, state)
                candidate_state = MatMul (gated, of_candidate)
                candidate_sum = Add (candidate_now, candidate_state)
                candidate = Tanh (candidate_sum)
                rest = Sub (one, gate)
                old = Mul (rest, state)
                new = Mul (gate, candidate)
                next = Add (old, new)
                kept = Identity (next)
            }
        > (begin, projected)
    }
""")
"""The operator in ONNX's own operators: what a runtime that has no library of ours runs."""


def _fake(
    x: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The result's shape and type, by which torch.export knows the operator."""
    return x.new_empty([*x.shape[:2], recurrent.shape[1]])


def cpp_form(folder: str | None = None) -> Any:
    """`cells::mgu`, compiled (see build.py) and given its fake function."""
    from examples.custom_operator.build import load

    operator = load(folder)
    torch.library.register_fake("cells::mgu", _fake)
    return operator


@torch.library.custom_op("cells_python::mgu", mutates_args=())
def python_form(
    x: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """x [batch, time, in], weight [2 hidden, in], recurrent [2 hidden, hidden], bias [2 hidden]."""
    of_gate, of_candidate = recurrent.chunk(2)
    state = x.new_zeros(x.shape[0], recurrent.shape[1])
    states = []
    for step in F.linear(x, weight, bias).unbind(1):
        gate_now, candidate_now = step.chunk(2, 1)
        gate = torch.sigmoid(gate_now + F.linear(state, of_gate))
        candidate = torch.tanh(candidate_now + F.linear(gate * state, of_candidate))
        state = (1 - gate) * state + gate * candidate
        states.append(state)
    return torch.stack(states, 1)


python_form.register_fake(_fake)


def _macs(x: tuple[int, ...], weight: tuple[int, ...], recurrent: tuple[int, ...], *_: Any) -> int:
    """Both weights for each step of each sample."""
    return x[0] * x[1] * (weight[0] * weight[1] + recurrent[0] * recurrent[1])


def register(operator: Any) -> None:
    """Tells qtool of one of the two forms; that is all there is to do."""
    qtool.register_operator(operator, onnx=FUNCTION, weights=("weight", "recurrent"), macs=_macs)
