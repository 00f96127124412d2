"""What of torch is used that torch does not promise to keep: one list, complete, and all there.

When a new version of torch comes, this is the first test to look at.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import fx

SEEN_IN = "2.13.0"
PRIVATE = {
    "torch._check": "a fact on sizes for torch.export; documented, though its name is private",
    "torch._C.DispatchKey": "operators that torch itself composes of others",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "the same",
    "torch._decomp": "shapes of norms, activations and recurrent layers, inferred in one step",
    "torch._dynamo": "the cache of shapes, which costs more than it saves",
    "torch._dispatch.python.enable_python_dispatcher": "shapes of decomposed operators",
    "torch._ops.HigherOrderOperator": "control flow in captured programs",
    "torch._ops.OpOverload": "what a call of a graph names",
    "torch._ops.OpOverloadPacket": "what a person may name an operator by",
    "torch._meta_registrations": "the shape of a convolution, without its memory format",
    "torch._subclasses.fake_impls": "the same",
    "torch._subclasses.fake_tensor.FakeTensorMode": "shapes of tensors that are read later",
    "torch.export._trace._fakify_params_buffers": "the values of stored numbers in a trace",
    "torch.export.pt2_archive._package._load_aoti": "refused: compiled code from a file",
    "torch.export.pt2_archive._package.pickle.loads": "refused: objects from a file",
    "torch.fx._lazy_graph_module._LazyGraphModule": "code of a copied graph only when it is called",
    "torch.nn.modules.transformer._detect_is_causal_mask": "a branch on the values of a mask",
    "torch.onnx._internal.exporter._core": "the exporter without its own checks and copies",
    "torch.onnx._internal.exporter._fx_passes": "the same",
    "torch.onnx._internal.exporter._registration": "the same",
    "torch.utils._python_dispatch.TorchDispatchMode": "of equal values, which comes first",
    "torch.utils._pytree": "values in containers; its module is imported by all of the ecosystem",
    "torch.utils._sympy.functions.FloorDiv": "sizes that come of divisions",
    "torch.utils._sympy.printers.PythonPrinter": "what has to hold of sizes, in words",
}


@cache
def _program() -> torch.export.ExportedProgram:
    return torch.export.export(torch.nn.Identity(), (torch.zeros(1),))


ATTRIBUTES = (  # (what returns an object, its private attribute, what it is good for)
    (fx.Graph, "_codegen", "the signature of a module, kept by a copied graph"),
    (lambda: fx.Graph().placeholder("x"), "_erased", "whether a node went with one before it"),
    (lambda: torch.ops.aten.add.Tensor, "_schema", "the names of an operator's arguments"),
    *(
        (lambda: torch.ops.aten.lstm.input, name, "shapes of recurrent layers without their steps")
        for name in ("py_kernels", "_dispatch_cache")
    ),
    (
        lambda: torch.ops.aten.add.Tensor,
        "_overloadname",
        "the operator that an in-place one stands for",
    ),
    (lambda: torch.zeros(1), "_version", "whether a tensor was written to since"),
    *((_program, n, "weights renamed") for n in ("_graph_signature", "_state_dict", "_constants")),
)

SOURCE = Path(__file__).parents[1] / "qtool"
ANY_PRIVATE = re.compile(r"\._|^from torch.* import (\(|.*\b_)", re.MULTILINE)  # else not parsed


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _names(tree: ast.Module) -> Iterator[str]:
    """Dotted names of torch with a private part: in code, in imports and in patches."""
    texts: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            texts |= {t.id: str(node.value.value) for t in node.targets if isinstance(t, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield _dotted(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                p.value if isinstance(p, ast.Constant) else texts.get(_dotted(p.value), "")
                for p in node.values
                if isinstance(p, ast.Constant | ast.FormattedValue)
            )
            yield "".join(map(str, parts))


def _is_private(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "torch" and any(
        p.startswith("_") and not p.startswith("__") and p.isidentifier() for p in parts[1:]
    )


def _within(name: str, known: str) -> bool:
    return f"{name}.".startswith(f"{known}.") or known.startswith(f"{name}.")


@cache
def _used() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        if not ANY_PRIVATE.search(text := file.read_text()):
            continue
        for name in _names(ast.parse(text)):
            if _is_private(name) and " " not in name:
                found[name] = file.relative_to(SOURCE).as_posix()
    return found


def test_the_list_is_complete() -> None:
    unknown = {n: file for n, file in _used().items() if not any(_within(n, p) for p in PRIVATE)}
    assert not unknown, "say in PRIVATE what it is good for"


def test_a_name_that_is_not_in_the_list_is_found() -> None:
    code = "from torch._inductor import config\nPACKAGE = 'torch.a'\npatch(f'{PACKAGE}._b')"
    assert {n for n in _names(ast.parse(code)) if _is_private(n)} == {
        *("torch._inductor.config", "torch.a._b")
    }


@pytest.mark.parametrize("name", PRIVATE)
def test_it_is_there_and_used(name: str) -> None:
    resolve_name(name)
    assert any(_within(used, name) for used in _used()), "nobody uses it any more"


@pytest.mark.parametrize(("of", "name", "reason"), ATTRIBUTES, ids=[a[1] for a in ATTRIBUTES])
def test_the_attribute_is_there(of: Any, name: str, reason: str) -> None:
    assert hasattr(of(), name), f"needed for {reason}; last seen in torch {SEEN_IN}"
