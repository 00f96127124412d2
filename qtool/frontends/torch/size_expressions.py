"""The expressions of dynamic sizes in a .pt2 file, which sympy evaluates as Python.

torch writes sizes as calls of classes on numbers and symbols: `Mul(Integer(2), Symbol('s0'))`.
Anything else, such as an attribute or another text, is refused before torch reads the file.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qtool.core.errors import CaptureError
from qtool.core.remedies import OtherFile

_KEY = "expr_str"
_FUNCTIONS = frozenset({"ceiling", "floor", "log", "sqrt", "abs"})
"""Names in lower case that may be called; classes of sympy and torch begin with an upper case."""
_TEXTS = frozenset({"Float", "Symbol"})
"""Classes whose argument is a text."""
_TEXT = re.compile(r"[A-Za-z0-9_.+-]*")
_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_]*")
_NODES = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.Tuple),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
_MOST = 100_000  # characters of an expression


def check_size_expressions(path: Path) -> None:
    """Check the expressions in all JSON members of a .pt2 file; other files have none.

    Raises:
        CaptureError: one is more than arithmetic on sizes, or the JSON is damaged.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    _check(json.loads(archive.read(name)), path)
    except CaptureError:
        raise
    except (OSError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CaptureError(
            f"{path} is damaged ({type(error).__name__} in its description of the graph)",
            OtherFile("write it again with torch.export.save(program, path)"),
        ) from error


def _check(content: Any, path: Path) -> None:
    for text in _expressions(content):
        if not is_size_expression(text):
            raise CaptureError(
                f"{path} has the size {str(text)[:60]!r}, which is more than arithmetic on "
                "sizes and may be code",
                OtherFile("take the file from people you trust, or export the model again"),
            )


def _expressions(content: Any) -> Iterator[Any]:
    queue = [content]
    while queue:
        value = queue.pop()
        if isinstance(value, dict):
            if _KEY in value:
                yield value[_KEY]
            queue += value.values()
        elif isinstance(value, list):
            queue += value


def is_size_expression(text: Any) -> bool:
    """Return whether a text has nothing but numbers, symbols, operators and calls of classes."""
    if not isinstance(text, str) or len(text) > _MOST:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    texts: set[ast.AST] = set()
    for node in ast.walk(tree):  # calls come before their arguments
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Name) and not _NAME.fullmatch(node.id):
            return False
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or not _is_callable(node.func.id):
                return False
            if node.func.id in _TEXTS:
                texts.update(node.args)
        if isinstance(node, ast.Constant) and not (_is_number(node.value) or node in texts):
            return False
    return all(_TEXT.fullmatch(str(t.value)) for t in texts if isinstance(t, ast.Constant))


def _is_callable(name: str) -> bool:
    return name[0].isupper() or name in _FUNCTIONS


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)
