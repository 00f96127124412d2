"""A statistic that stands twice gives two answers to one question."""

import ast
import re
from pathlib import Path

import pytest

import qtool

SOURCES = Path(qtool.__file__).parent
WORDS = {
    "intervals": ("interval", "bootstrap", "jackknife"),
    "metrics": (
        *("agreement", "perplexity", "correlation", "recall", "spearman", "divergence", "entropy"),
        *("f1", "hits", "r2", "regression", "top_1", "word_error"),
    ),
}
ELSEWHERE = {
    "evaluation/language_model.py": "which tokens count",
    "observers/entropy.py": "of histograms, an observer's",
}


@pytest.mark.parametrize("kind", WORDS)
def test_statistics_are_computed_in_one_package(kind: str) -> None:
    defined = re.compile(rf"def \w*({'|'.join(WORDS[kind])})")
    places = [
        f"{path.relative_to(SOURCES)}: {node.name}"
        for path in SOURCES.rglob("*.py")
        if path.parts[len(SOURCES.parts)] != "metrics"
        and path.relative_to(SOURCES).as_posix() not in ELSEWHERE
        and defined.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and any(word in node.name for word in WORDS[kind])
        and not _is_method_or_text(node)
    ]
    assert places == []


def _is_method_or_text(node: ast.FunctionDef) -> bool:
    """Return whether a function reads or shows a statistic that is there."""
    first = [a.arg for a in node.args.args[:1]]
    return first == ["self"] or ast.unparse(node.returns or ast.Constant("")) == "str"
