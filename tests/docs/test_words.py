"""Words that CONTRIBUTING.md lists as to be avoided do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(f for folder in ("qtool", "cli") for f in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = re.compile(
    r"\b(so manieth|nobody|beside|speaks of|by hand of|one of one's own)\b", re.IGNORECASE
)
NAMES = {"found", "given", "told", "asked", "said"}


def named(source: str) -> Iterator[str]:
    """The functions, parameters and variables that a module defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_words_to_avoid() -> None:
    words = {file: WORDS.findall(file.read_text("utf-8")) for file in (*SOURCES, *PAGES)}
    assert {str(f): w for f, w in words.items() if w} == {}


def test_names_are_nouns_or_verbs() -> None:
    allowed = {"explanation.py": {"given"}}  # a key of a stored result
    names = {f: NAMES.intersection(named(f.read_text("utf-8"))) for f in SOURCES}
    assert {str(f): n for f, n in names.items() if n - allowed.get(f.name, set())} == {}


def test_the_checks_see_what_they_look_for() -> None:
    assert WORDS.findall("So manieth runs, beside others") == ["So manieth", "beside"]
    assert NAMES.intersection(named("def said(told): found = 1")) == {"said", "told", "found"}
