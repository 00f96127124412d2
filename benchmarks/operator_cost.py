"""How many places of the library name an operator: what it costs to have one.

    python benchmarks/operator_cost.py [OPERATOR ...] [--tree FOLDER] [--files]

An OPERATOR is its key in qtool.core.ops, with `=` and the other names that it has in formats where
they are spelled differently: `sigmoid=logistic`. Names are compared without underscores and in
small letters, so that leaky_relu, LeakyRelu, LEAKY_RELU and aten.leaky_relu_ are one, with the
prefix QLinear of ONNX Runtime and the suffix Options of TFLite. A file counts once; of a function
that has the name every line counts, elsewhere the lines with the name. Comments and documentation
do not count. Lists of a whole format, complete whatever qtool supports, are counted apart. FOLDER
is a checkout, this one by default.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFAULT = ("leaky_relu", "average_pool", "sigmoid=logistic")
FORMAT_LISTS = frozenset(
    f"qtool/plugins/tflite/{name}.py"
    for name in ("file/schema", "file/operator_codes", "microcontroller")
)


def names_of(operator: str) -> frozenset[str]:
    """Return the plain forms of all names of an operator; `operator` as on the command line."""
    key, _, others = operator.partition("=")
    own = {plain(name) for name in (key, *filter(None, others.split(",")))}
    return frozenset({*own, *(f"qlinear{n}" for n in own), *(f"{n}options" for n in own)})


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def naming_lines(source: str, names: Set[str]) -> set[int]:
    """Return the numbers of the lines of a Python file that an operator needs there."""
    tree = ast.parse(source)
    skipped = set(_documentation(tree))
    lines = {number for number, word in _words(source) if plain(word) in names} - skipped
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and plain(node.name) in names:
            lines |= set(range(node.lineno, int(node.end_lineno or 0) + 1)) - skipped
    return lines


def _documentation(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of strings that are statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from range(node.lineno, int(node.end_lineno or 0) + 1)


def _words(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, word) of names, and of the words in strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            for offset, line in enumerate(token.string.splitlines()):
                for word in "".join(c if c.isalnum() or c == "_" else " " for c in line).split():
                    yield token.start[0] + offset, word


def cost(tree: Path, operator: str) -> dict[str, int]:
    """Return file -> number of lines that an operator needs in it."""
    names, counts = names_of(operator), {}
    for folder in ("qtool", "cli"):
        for file in sorted((tree / folder).rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            if not any(name in plain(source) for name in names):
                continue
            if lines := naming_lines(source, names):
                counts[file.relative_to(tree).as_posix()] = len(lines)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("operators", nargs="*", default=DEFAULT)
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of qtool")
    parser.add_argument("--files", action="store_true", help="print each file")
    options = parser.parse_args()
    for operator in options.operators:
        counts = cost(options.tree, operator)
        listed = {name: n for name, n in counts.items() if name in FORMAT_LISTS}
        own = {name: n for name, n in counts.items() if name not in FORMAT_LISTS}
        formats = {"ONNX": 0, "TFLite": 0, "both": 0}
        for name in own:
            of = "TFLite" if "tflite" in name else "ONNX" if "onnx" in name else "both"
            formats[of] += 1
        print(
            f"{operator.partition('=')[0]:<16}{len(own):>3} files, {sum(own.values()):>3} lines ("
            + ", ".join(f"{of} {count}" for of, count in formats.items())
            + f"); {len(listed)} lists of formats"
        )
        if options.files:
            print("".join(f"    {n:>3} {name}\n" for name, n in own.items()), end="")


if __name__ == "__main__":
    main()
