"""Words that CONTRIBUTING.md lists as to be avoided do not come back."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(f for folder in ("qtool", "cli") for f in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = re.compile(
    r"\b(so manieth|nobody|beside|speaks of|by hand of|one of one's own)\b", re.IGNORECASE
)
NAMES = {"found", "given", "told", "asked", "said"}
ENTRY = re.compile(r" *[*\w]+(?:, [*\w]+)*: (.*)")
PREPOSITION = re.compile(
    r"(of|to|from|in|for|with|without|by(?! default)|on|at|after|before|behind|between|into|under"
    r"|over|through|during|within|near|against|like|until|since|beyond|inside)\b",
    re.IGNORECASE,
)


@cache
def nodes(file: Path) -> list[ast.AST]:
    """The nodes of a module that may break a rule: definitions, parameters and names."""
    kinds, source = (ast.FunctionDef, ast.ClassDef, ast.arg, ast.Name), file.read_text("utf-8")
    suspect = SUSPECT.search(source)  # parsing all modules takes seconds
    return [n for n in ast.walk(ast.parse(source)) if isinstance(n, kinds)] if suspect else []


SUSPECT = re.compile(
    rf"\b({'|'.join(NAMES)})\b|^ +(?:[*\w, ]+:|Returns:\n) +{PREPOSITION.pattern}",
    re.MULTILINE | re.IGNORECASE,
)


def named(file: Path) -> Iterator[str]:
    """The functions, parameters and variables that a module defines."""
    for node in nodes(file):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def entries(file: Path) -> Iterator[str]:
    """The descriptions of arguments, attributes and results in the docstrings of a module."""
    for node in nodes(file):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        inside, lines = False, (ast.get_docstring(node) or "").split("\n")
        yield from (text.strip() for title, text in pairwise(lines) if title == "Returns:")
        for line in lines:
            indent = len(line) - len(line.lstrip())
            inside = line in ("Args:", "Attributes:") if line and not indent else inside
            entry = ENTRY.fullmatch(line)
            if inside and indent == 4 and entry is not None:
                yield entry[1]


def test_words_to_avoid() -> None:
    words = {file: WORDS.findall(file.read_text("utf-8")) for file in (*SOURCES, *PAGES)}
    assert {str(f): w for f, w in words.items() if w} == {}


def test_names_are_nouns_or_verbs() -> None:
    names = {f: NAMES.intersection(named(f)) for f in SOURCES}
    assert {str(f): n for f, n in names.items() if n} == {}


def test_descriptions_of_arguments_and_results_begin_with_their_noun() -> None:
    """`axis: axis of the channels`, not `axis: of the channels`."""
    bare = {f: list(filter(PREPOSITION.match, entries(f))) for f in SOURCES}
    assert {str(f): texts for f, texts in bare.items() if texts} == {}
