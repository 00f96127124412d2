"""Why a model cannot be written: the operator, the line of the user's code, and what to do."""

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
    "compute with real and imaginary parts apart (torch.view_as_real), or keep what is complex "
    "outside of the model"
)
_OTHER = "write it with operators that have one, or give it one with qtool.register_operator"


def describe_export_error(graph: fx.Graph, error: BaseException) -> str:
    """What torch.onnx raised, in one sentence.

    Of an operator without a form the sentence names the first call and its line. Of anything else
    it is the innermost cause, since torch.onnx wraps it several times; a line of it that ends in a
    colon is of no use without the next one.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])
    found = _NO_FORM.search(text)
    target = ".".join(found.groups()) if found else ""
    node = next((n for n in G.calls(graph) if str(n.target) == target), None)
    if node is None and found is not None:
        word = found[1].rpartition(".")[2].strip("_")  # what one is made of is called alike
        node = next((n for n in G.calls(graph) if word in str(n.target)), None)
        target = target if node is None else str(node.target)
    if node is None:
        return text if found is None else f"{target} has no form there; {_OTHER}"
    where = f" at {line}" if (line := _line(node)) else ""
    remedy = _COMPLEX if any(map(_is_complex, (node, *node.all_input_nodes))) else _OTHER
    return f"{G.name_of(node)} ({target}{where}) has no form there; {remedy}"


def _line(node: fx.Node) -> str:
    """The innermost line that is not torch's: FILE:LINE: CODE; "" where none is known."""
    lines = _LINE.findall(str(node.meta.get("stack_trace", "")))
    own = [line for line in lines if not line[0].startswith(_TORCH)]
    return "{}:{}: {}".format(*own[-1]) if own else ""


def _is_complex(node: fx.Node) -> bool:
    return G.is_tensor(node) and bool(G.value(node).is_complex())
