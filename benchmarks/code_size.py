"""The size of the code in two trees, package by package.

    python benchmarks/code_size.py BEFORE [AFTER]

BEFORE and AFTER are checkouts. Of each package of qtool, and of cli, in both:

- lines of code: without docstrings, comments, imports and blank lines;
- modules, and those that exactly one other module of the tree imports;
- lines of a function from its `def` to its end: median, 90th percentile, largest.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ALL = "all"
TITLES = ("package", "code", "modules", "one importer", "p50", "p90", "max")
WIDTH = 14
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """The size of a package."""

    code: int = 0
    modules: int = 0
    one_importer: int = 0
    functions: list[int] = field(default_factory=list)

    def cells(self) -> list[int]:
        lengths = sorted(self.functions) or [0]
        ranks = [lengths[int(share * (len(lengths) - 1))] for share in (0.5, 0.9, 1)]
        return [self.code, self.modules, self.one_importer, *ranks]


# ------------------------------------------------------------------------------------- a tree


def measure(tree: Path) -> dict[str, Size]:
    """Package -> its size; "all" is the last."""
    files = dict(_modules(tree))
    parsed = {m: ast.parse(f.read_text("utf-8")) for m, f in files.items()}
    importers = Counter(
        target for module, code in parsed.items() for target in _imported(module, code, files)
    )
    sizes: dict[str, Size] = defaultdict(Size)
    total = Size()
    for module, code in sorted(parsed.items()):
        for size in (sizes[_package(module)], total):
            size.code += code_lines(files[module].read_text("utf-8"), code)
            size.modules += 1
            size.one_importer += importers[module] == 1
            size.functions += _lengths(code)
    return {**sizes, ALL: total}


def _modules(tree: Path) -> Iterator[tuple[str, Path]]:
    """Names as they are imported: the folder cli is `qtool.cli`."""
    for root, prefix in (("qtool", ()), ("cli", ("qtool",))):
        for file in sorted((tree / root).rglob("*.py")):
            parts = file.relative_to(tree).with_suffix("").parts
            yield ".".join((*prefix, *parts)).removesuffix(".__init__"), file


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def code_lines(text: str, code: ast.Module) -> int:
    """Return the number of lines with code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    skipped |= {tokenize.ENDMARKER, tokenize.ENCODING}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(code):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines -= _span(node)
        if isinstance(node, _DOCUMENTED):  # and strings after assignments, as documentation has
            strings = (n for n in node.body if isinstance(n, ast.Expr))
            texts = [n for n in strings if isinstance(n.value, ast.Constant)]
            lines -= {n for text in texts if isinstance(text.value.value, str) for n in _span(text)}
    return len(lines)


def _span(node: ast.stmt) -> set[int]:
    return {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _imported(module: str, code: ast.Module, files: Mapping[str, Path]) -> set[str]:
    """Other modules of the tree that a module imports, anywhere in it."""
    targets: set[str] = set()
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= {name if name in files else node.module for name in names}
    return targets & files.keys() - {module}


def _lengths(code: ast.Module) -> list[int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [len(_span(n)) for n in ast.walk(code) if isinstance(n, functions)]


# -------------------------------------------------------------------------------------- printing


def _print_sizes(trees: list[dict[str, Size]]) -> None:
    print(f"{TITLES[0]:20}" + "".join(f"{title:>{WIDTH}}" for title in TITLES[1:]))
    names = sorted({n for tree in trees for n in tree} - {ALL})
    for name in (*names, ALL):
        rows = [tree.get(name, Size()).cells() for tree in trees]
        cells = [" -> ".join(map(str, dict.fromkeys(column))) for column in zip(*rows, strict=True)]
        print(f"{name:20}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs="+", help="checkouts, one or two")
    trees = parser.parse_args().trees
    _print_sizes([measure(tree) for tree in trees])


if __name__ == "__main__":
    main()
