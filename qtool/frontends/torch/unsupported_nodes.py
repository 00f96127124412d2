"""Nodes of an exported program that the float graph does not support."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.argument_names import python_only
from qtool.core.errors import CaptureError
from qtool.core.ops import Role, row_of
from qtool.core.remedies import Argument, ModelEdit

aten = torch.ops.aten
_RECURRENT = (
    aten.lstm.input,
    aten.gru.input,
    aten.rnn_tanh.input,
    aten.rnn_relu.input,
)
_DROPOUTS = (
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
)


def unsupported(node: fx.Node) -> CaptureError | None:
    """Return the error for a graph with this node; None if it is supported."""
    if node.op == "placeholder" and not isinstance(G.value(node), torch.Tensor | None):
        return CaptureError(
            f"input '{node.target}' is not a tensor",
            ModelEdit(
                "wrap the model in an nn.Module that takes tensors only and fixes the other "
                "arguments"
            ),
        )
    if node.op == "call_function" and _computes_in_bfloat16(node):
        return CaptureError(
            f"the model computes in bfloat16 ({node.target}), for which the runtimes have no "
            "kernels",
            ModelEdit("leave out torch.autocast in forward, and call float() on that module"),
        )
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return CaptureError(
            f"the model has a branch or loop inside (torch.{node.target}); a graph has one path",
            ModelEdit("use torch.where"),
            ModelEdit("unroll the loop"),
        )
    if _draws_random_numbers(node):
        return CaptureError(
            f"the model draws random numbers ({node.target})",
            ModelEdit(
                "if that is dropout, call model.eval() and give F.dropout training=self.training"
            ),
            Argument("--noise-input", text="if it is noise, make it an input with {}"),
        )
    if node.target is aten.lstm.input and _has_projections(node):
        return CaptureError(
            "ONNX does not support an LSTM with projections (proj_size)",
            ModelEdit("use the projection's size as hidden size"),
            ModelEdit("put a linear layer behind the LSTM"),
        )
    if str(node.target).startswith("transformers.grouped_mm"):
        return CaptureError(
            f"a mixture of experts computes with {node.target}, which ONNX does not support",
            ModelEdit('load the model with experts_implementation="batched_mm"'),
        )
    if str(node.target).startswith("aten.conv"):
        if isinstance(G.argument(node, 6, "groups", 1), fx.Node):
            return CaptureError(
                "a convolution has one group with its own weights per sample, which ONNX does not "
                "support",
                ModelEdit("compute it as a matrix product"),
                *python_only(ModelEdit("fix the batch size with dynamic={}")),
            )
        x, weight = node.args[:2]
        if isinstance(x, fx.Node) and isinstance(weight, fx.Node) and G.rank(x) != G.rank(weight):
            shape = list(G.shape(x))
            return CaptureError(
                f"a convolution gets one sample, {shape}", ModelEdit("give it a batch")
            )
    return None


def _computes_in_bfloat16(node: fx.Node) -> bool:
    value, row = G.value(node), row_of(node)
    computed = row is not None and row.role is not Role.PASS
    return computed and isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


def _has_projections(lstm: fx.Node) -> bool:
    states: Any = lstm.args[1]
    hidden, cell = (G.shape(state) for state in states)
    return int(hidden[-1]) != int(cell[-1])


def _draws_random_numbers(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    inactive = node.target in _DROPOUTS and not (node.args[1] and node.args[2])
    if node.target in _RECURRENT:
        inactive = not (node.args[5] and node.args[6])
    if node.target is aten.rrelu.default:
        inactive = not G.argument(node, 3, "training", False)
    if node.target is aten.scaled_dot_product_attention.default:
        inactive = not G.argument(node, 4, "dropout_p", 0.0)
    return torch.Tag.nondeterministic_seeded in tags and not inactive
