"""An estimator that stands twice gives two answers to one question."""

import ast
from pathlib import Path

import qtool

SOURCES = Path(qtool.__file__).parent
ESTIMATORS = ("interval", "bootstrap", "jackknife")


def test_intervals_are_computed_in_one_package() -> None:
    places = [
        f"{path.relative_to(SOURCES)}: {node.name}"
        for path in SOURCES.rglob("*.py")
        if path.parts[len(SOURCES.parts)] != "metrics"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(word in node.name for word in ESTIMATORS)
        and not _is_method_or_text(node)
    ]
    assert places == []


def _is_method_or_text(node: ast.FunctionDef) -> bool:
    """Return whether a function reads or shows an interval that is there."""
    first = [a.arg for a in node.args.args[:1]]
    return first == ["self"] or ast.unparse(node.returns or ast.Constant("")) == "str"
