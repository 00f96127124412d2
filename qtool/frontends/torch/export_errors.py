"""Explains errors of torch.export: where in the user's code, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from sysconfig import get_path
from traceback import FrameSummary, extract_tb

import torch
from torch import nn

from qtool.core import graph as G
from qtool.core.argument_names import python_only
from qtool.core.data import Batch
from qtool.core.errors import CaptureError, describe
from qtool.core.remedies import DataEdit, ModelEdit, OtherFile, Remedy
from qtool.core.shape_remedies import AS_LABELS
from qtool.core.user_code import user_place
from qtool.frontends.torch.example_inputs import DOES_NOT_RUN, FixedSizeError
from qtool.frontends.torch.exported_program import first_line

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PYTHON = str(get_path("stdlib")) + os.sep
_OWN = str(Path(__file__).parents[2]) + os.sep
_FIXED = re.compile(r"L\['(\w+)'\]\S*\.size\(\)\[(\d+)\] .* constant \((\d+)\)")
_USER_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(\S.*)')
_CALL = r"\b(?:float|int|round)\([^()]*(?:\([^()]*\))*[^()]*\)"
_NUMBER = re.compile(rf"{_CALL}|\.item\(\)|\.tolist\(\)")
_BRANCH = re.compile(r"(?:if|elif|while|for|assert|return .* if)\b")
_CAUSE = re.compile(r"\(([^()\s]+\.py):(\d+) in (\w+)\)")
_EXPLANATIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "EncoderDecoderCache|DynamicCache|StaticCache|cache_utils",
        "the model takes or returns a KV cache",
        (
            "call it with use_cache=False",
            "wrap it in an nn.Module that takes and returns the cache as tensors",
            "register the class: transformers.integrations.executorch has a function for it",
        ),
    ),
    (
        r"Found <class '[^']+'> in output, which is not a known type",
        "the model returns an object of a class that torch.export does not know",
        (
            "return a tensor, or a tuple or dict of tensors",
            "register the class with torch.export.register_dataclass",
        ),
    ),
    (
        "LazyModule|uninitialized parameter",
        "the model has lazy layers, whose weights have no sizes yet",
        ("call it with a batch first, then load its weights",),
    ),
    (
        "found a fake tensor in the exported program constant's list",
        "the model uses a tensor that tracing does not see (.data, or one of an earlier call)",
        ("use .detach(), and store no tensors between calls",),
    ),
    (
        r"pack_padded|zeros\(\): argument 'size' failed to unpack",
        "pack_padded_sequence computes sizes from data",
        ("give the padded tensor to the layer, and a mask to the layers that read its result",),
    ),
    (
        "batched_nms|roi_heads|torchvision/models/detection|torchvision/ops/boxes",
        "a detector selects boxes by their scores",
        ("quantize its backbone and heads, and keep the selection (NMS) outside of the model",),
    ),
)
"""Pattern of an error of torch.export -> what is wrong, and what to change in the model."""


_FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.float64}
_HALF = re.compile(r"\b(Half|BFloat16)\b")
INDICES = DataEdit(
    "give indices (token ids, categories) and lengths that the tables of the model have"
)


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
    where = file = ""
    if lines:
        where, file = " at {}:{}: {}".format(*lines[-1]), lines[-1][0]
    elif cause := _CAUSE.search(text):
        where, file = " at {}:{} in {}".format(*cause.groups()), cause[1]
    if not where:
        where, file = _raised_at(error)
    edits = partial(_edits, library_of(file))
    if known := next((row for row in _EXPLANATIONS if re.search(row[0], text)), None):
        place = f" ({where[4:]})" if where else ""
        return CaptureError(f"{known[1]}{place}", *map(ModelEdit, known[2]))
    if "data-dependent" in text and (number := _number_in(lines)) is not None:
        return CaptureError(
            f"the model makes a Python number of a tensor ({number}){where}, which a graph cannot",
            *edits("compute with the tensor itself", "store a constant"),
        )
    if "data-dependent" in text:
        return CaptureError(
            f"the model branches on values of its data{where}; a graph has one path",
            *edits(
                "replace the branch by torch.where, a loop by one of a fixed length",
                "fix the decision with a constructor argument",
            ),
        )
    if fixed := _FIXED.search(text):
        name, axis, size = fixed.groups()
        return FixedSizeError(name, int(axis), int(size))
    if problem := eager_problem(model, example):
        return run_error(model, example, problem)
    if problem := eager_problem(model, two):
        return CaptureError(
            f"the model takes one sample but not two ({problem})",
            *edits("the first dimension of every input must be the batch"),
            *python_only(ModelEdit("fix every size with dynamic={}")),
        )
    if isinstance(error, CaptureError):  # an operator of an ONNX file, which its runtime runs
        sizes = ", ".join(_shown(*each) for each in example.tensors())
        edits_ = error.remedies or (DataEdit("give batches of other sizes"),)
        return CaptureError(f"{error.problem} (inputs: {sizes})", *edits_)
    why = describe(error) if isinstance(error, LookupError) else first_line(error)
    return CaptureError(
        f"torch.export cannot capture the model{where}: {why}",
        *edits("rewrite that code", "quantize the model without it"),
    )


def library_of(file: str) -> str:
    """Return the installed package that a file of code belongs to; "" if it is the user's."""
    parts = Path(file).parts
    at = next((i for i, part in enumerate(parts) if part.endswith("-packages")), len(parts))
    return "".join(parts[at + 1 : at + 2])


def _edits(library: str, *own: str) -> list[Remedy]:
    """Return what to do about code: edits for a user whose own it is, else what is left to one."""
    if not library:
        return [ModelEdit(text) for text in own]
    return [
        ModelEdit(f"that code is of {library}: wrap the part of the model in front of it"),
        OtherFile("give the model as an .onnx file that the library exports"),
    ]


def run_error(model: nn.Module, example: Batch, problem: str) -> CaptureError:
    """Return an error for a batch that a model does not run on, with what to write if that is
    known."""
    inputs = ", ".join(_shown(where, t) for where, t in example.tensors())
    if not inputs and (example.args or example.kwargs):
        return CaptureError(
            "a batch holds no tensors",
            DataEdit("give tensors (images through a transform, texts through a tokenizer)"),
        )
    what = f"{DOES_NOT_RUN} ({inputs or 'no tensors'})"
    if problem.startswith("IndexError: index out of range"):
        return CaptureError(f"{what}: {problem}", INDICES)
    if len(example.tensors()) == 1 and example.tensors()[0][1].dim() == 1:
        return CaptureError(f"{what}: {problem}", AS_LABELS)
    return CaptureError(f"{what}: {problem}", *_code_edits(model, problem))


def _code_edits(model: nn.Module, problem: str) -> list[Remedy]:
    """Return what to change in a model that computes on a GPU, or in several float types."""
    if "CUDA" in problem:
        return [ModelEdit("compute on the device of the input, x.device")]
    types = {p.dtype for p in model.parameters()}
    if len(types) > 1 and types <= _FLOATS and "dtype" in problem:
        return [ModelEdit("call model.float() first")]
    if types == {torch.float32} and _HALF.search(problem):  # a copy in float32 is quantized
        return [ModelEdit("compute in the type of the weights, x.to(self.weight.dtype)")]
    trained = DataEdit("give batches of the types and shapes that the model was trained on")
    return [trained] if "Error" in problem.partition(":")[0] else []


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


def _raised_at(error: BaseException) -> tuple[str, str]:
    """Return the innermost line outside of torch and qtool and its file, or empty texts."""
    frames = [f for f in extract_tb(error.__traceback__) if f.line]
    own = [f for f in frames if not f.filename.startswith((_TORCH, _OWN)) and not _is_python(f)]
    if not own:
        return "", ""
    return f" at {own[-1].filename}:{own[-1].lineno}: {own[-1].line}", own[-1].filename


def _is_python(frame: FrameSummary) -> bool:
    """Return whether a frame is of Python's own library, which has the packages below it."""
    return frame.filename.startswith(_PYTHON) and not library_of(frame.filename)


def eager_problem(model: nn.Module, example: Batch) -> str | None:
    """Return the error of calling the model with these inputs, or None."""
    try:
        example = example.to(G.device_of(model))
        with torch.no_grad():
            model(*example.args, **example.kwargs)
    except SystemExit as error:
        return describe(error)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        return f"{type(error).__name__}: {first_line(error)}{user_place(error)}"
    return None
