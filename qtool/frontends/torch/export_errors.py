"""Explains errors of torch.export: where in the user's code, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from traceback import extract_tb

import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.errors import CaptureError, describe
from qtool.frontends.torch.exported_program import first_line
from qtool.frontends.torch.input_remedies import input_remedy

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OWN = str(Path(__file__).parents[2]) + os.sep
_FIXED = re.compile(r"L\['(\w+)'\]\S*\.size\(\)\[(\d+)\] .* constant \((\d+)\)")
_USER_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(\S.*)')
_CALL = r"\b(?:float|int|round)\([^()]*(?:\([^()]*\))*[^()]*\)"
_NUMBER = re.compile(rf"{_CALL}|\.item\(\)|\.tolist\(\)")
_BRANCH = re.compile(r"(?:if|elif|while|for|assert|return .* if)\b")
_CAUSE = re.compile(r"\(([^()\s]+\.py):(\d+) in (\w+)\)")
_REMEDIES = (
    (
        re.compile("EncoderDecoderCache|DynamicCache|StaticCache|cache_utils"),
        (
            "the model takes or returns a KV cache; call it with use_cache=False, wrap it in an "
            "nn.Module that takes and returns the cache as tensors, or register the class with "
            "transformers.integrations.executorch.register_dynamic_cache_export_support()"
        ),
    ),
    (
        re.compile(r"Found <class '[^']+'> in output, which is not a known type"),
        (
            "the model returns an object of a class that torch.export does not know; return a "
            "tensor, or a tuple or dict of tensors, or register the class with "
            "torch.export.register_dataclass"
        ),
    ),
    (
        re.compile("LazyModule|uninitialized parameter"),
        (
            "the model has lazy layers, whose weights have no sizes yet; call it with a batch, or "
            "load its weights, first"
        ),
    ),
    (
        re.compile("found a fake tensor in the exported program constant's list"),
        (
            "the model uses a tensor that tracing does not see (.data, or one stored by an earlier "
            "call); use .detach(), and store no tensors between calls"
        ),
    ),
    (
        re.compile(r"pack_padded|zeros\(\): argument 'size' failed to unpack"),
        (
            "pack_padded_sequence computes sizes from data; give the padded tensor to the layer, "
            "and a mask to the layers that read its result"
        ),
    ),
    (
        re.compile("batched_nms|roi_heads|torchvision/models/detection|torchvision/ops/boxes"),
        (
            "a detector selects boxes by their scores; quantize its backbone and heads, and keep "
            "the selection (NMS) outside of the model"
        ),
    ),
)
"""Errors of torch.export, and what to do about them."""


class FixedSizeError(CaptureError):
    """A dimension that was to be dynamic, and that the model fixes.

    Attributes:
        name: name of the input.
        axis: the dimension.
        size: the only one that the model takes.
    """

    def __init__(self, name: str, axis: int, size: int) -> None:
        super().__init__(
            f"dimension {axis} of input '{name}' cannot be dynamic: the model takes {size} only; "
            "len(x), int(...) and loops over a size fix it, x.shape does not; change that line, or "
            "leave the dimension out of dynamic"
        )
        self.name, self.axis, self.size = name, axis, size


def explain_export_error(
    model: nn.Module, example: Batch, two: Batch, error: BaseException
) -> CaptureError:
    """Return an error that says what to change in the model or the batch.

    Args:
        model: the user's module.
        example: its batch.
        two: the batch that was exported: the example, with a single sample doubled.
        error: raised by torch.export.
    """
    text = str(error)
    lines = [m for m in _USER_LINE.findall(text) if not m[0].startswith(_TORCH)]
    where = f" at {lines[-1][0]}:{lines[-1][1]}: {lines[-1][2]}" if lines else ""
    if not lines and (cause := _CAUSE.search(text)):
        where = " at {}:{} in {}".format(*cause.groups())
    where = where or _raised_at(error)
    if remedy := next((r for pattern, r in _REMEDIES if pattern.search(text)), None):
        return CaptureError(f"{remedy}{f' ({where[4:]})' if where else ''}")
    if "data-dependent" in text and (number := _number_in(lines)) is not None:
        return CaptureError(
            f"the model makes a Python number of a tensor ({number}){where}, which a graph cannot: "
            "compute with the tensor itself, or store a constant"
        )
    if "data-dependent" in text:
        return CaptureError(
            f"the model branches on values of its data{where}; a graph has one path: replace the "
            "branch by torch.where, a loop by one of a fixed length, or fix the decision with a "
            "constructor argument"
        )
    if fixed := _FIXED.search(text):
        name, axis, size = fixed.groups()
        return FixedSizeError(name, int(axis), int(size))
    if problem := eager_problem(model, example):
        return run_error(model, example, problem)
    if problem := eager_problem(model, two):
        return CaptureError(
            "the model takes one sample but not two; the first dimension of every input must be "
            f"the batch (or fix every size with dynamic={{}}): {problem}"
        )
    return CaptureError(
        f"torch.export cannot capture the model{where}: {first_line(error)}; the model runs, but "
        "cannot be traced: rewrite that code, or quantize the model without it"
    )


def run_error(model: nn.Module, example: Batch, problem: str) -> CaptureError:
    """Return an error for a batch that a model does not run on, with what to write if that is
    known."""
    inputs = ", ".join(_shown(where, t) for where, t in example.tensors())
    remedy = input_remedy(model, example)
    if remedy is None and problem.startswith("IndexError: index out of range"):
        remedy = (
            f"{problem}; an index, such as a token id, is beyond the table it selects from: use "
            "the model's own tokenizer"
        )
    return CaptureError(
        f"the model does not run on the given inputs ({inputs or 'no tensors'}): "
        f"{remedy or problem}"
    )


def _number_in(lines: Sequence[tuple[str, str, str]]) -> str | None:
    """Return the expression of a user's line that turns a tensor into a number, outside of branches
    and loops; None without one."""
    if not lines or _BRANCH.match(lines[-1][2]):
        return None
    number = _NUMBER.search(lines[-1][2])
    return None if number is None else number[0].strip(".")


def _shown(where: str, tensor: torch.Tensor) -> str:
    """Return an input with its type and shape."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{where}: {dtype}{list(tensor.shape)}"


def _raised_at(error: BaseException) -> str:
    """Return the innermost line outside of torch and qtool, or ""."""
    frames = [f for f in extract_tb(error.__traceback__) if f.line]
    own = [f for f in frames if not f.filename.startswith((_TORCH, _OWN))]
    return f" at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def eager_problem(model: nn.Module, example: Batch) -> str | None:
    """Return the error of calling the model with these inputs, or None."""
    try:
        with torch.no_grad():
            model(*example.args, **example.kwargs)
    except SystemExit as error:
        return describe(error)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        return f"{type(error).__name__}: {first_line(error)}"
    return None
