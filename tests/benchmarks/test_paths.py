"""Scripts that count: paths, imports, the cost of an operator."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, name in the file) of imports from the library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("qtool."):
            yield from ((str(node.module), n.name, n.asname or n.name) for n in node.names)


def lookup(module: str, name: str) -> Any:
    found = getattr(import_module(module), name, None)
    return import_module(f"{module}.{name}") if found is None else found


def missing(text: str) -> list[str]:
    """Imports that fail, and attributes that imported modules do not have."""
    tree, modules, lost = ast.parse(text), dict[str, ModuleType](), list[str]()
    for module, name, here in imported(tree):
        try:
            found = lookup(module, name)
        except ImportError:
            lost.append(f"{module}.{name}")
            continue
        if isinstance(found, ModuleType):
            modules[here] = found
    uses = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    named = ((n.value.id, n.attr) for n in uses if isinstance(n.value, ast.Name))
    return lost + [f"{n}.{a}" for n, a in named if n in modules and not hasattr(modules[n], a)]


@pytest.mark.parametrize("file", FILES)
def test_a_benchmark_finds_what_it_uses(file: str) -> None:
    assert missing((FOLDER / file).read_text(encoding="utf-8")) == []
