"""Why a model cannot be written: the operator, the line of the user's code, and the remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import fx

from qtool.core import graph as G

_TORCH = str(Path(torch.__file__).parent) + os.sep
_NO_FORM = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)', overload='(\w+)'\)>")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(\S.*)')
_COMPLEX = (
    "compute with separate real and imaginary parts (torch.view_as_real), or move the complex "
    "computation out of the model"
)
_OTHER = "use operators that have one, or add one with qtool.register_operator"


def describe_export_error(graph: fx.Graph, error: BaseException) -> str:
    """Return in one sentence what torch.onnx raised.

    For an operator without ONNX form it names the first call and its line. For other errors it is
    the innermost cause, since torch.onnx wraps errors several times; a line that ends in a colon is
    joined with the next one.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])
    match = _NO_FORM.search(text)
    target = ".".join(match.groups()) if match else ""
    node = next((n for n in G.calls(graph) if str(n.target) == target), None)
    if node is None and match is not None:
        word = match[1].rpartition(".")[2].strip("_")  # an operator is named like its decomposition
        node = next((n for n in G.calls(graph) if word in str(n.target)), None)
        target = target if node is None else str(node.target)
    if node is None:
        return text if match is None else f"{target} has no ONNX form; {_OTHER}"
    where = f" at {line}" if (line := _line(node)) else ""
    remedy = _COMPLEX if any(map(_is_complex, (node, *node.all_input_nodes))) else _OTHER
    return f"{G.name_of(node)} ({target}{where}) has no ONNX form; {remedy}"


def _line(node: fx.Node) -> str:
    """Return the innermost line outside of torch, as FILE:LINE: CODE; "" if unknown."""
    lines = _LINE.findall(str(node.meta.get("stack_trace", "")))
    own = [line for line in lines if not line[0].startswith(_TORCH)]
    return "{}:{}: {}".format(*own[-1]) if own else ""


def _is_complex(node: fx.Node) -> bool:
    return G.is_tensor(node) and bool(G.value(node).is_complex())
