"""The size of the code in two trees, package by package, and the path of one convolution.

    python benchmarks/code_size.py BEFORE [AFTER]

BEFORE and AFTER are checkouts. Of each package of qtool, and of cli, in both:

- lines of code: without docstrings, comments, imports and blank lines;
- modules, and those that exactly one other module of the tree imports;
- lines of a function from its `def` to its end: median, 90th percentile, largest.

The path: a network of one convolution is planned, converted, written and verified by a fresh
process for each tree; counted are the modules of qtool in which a function runs, and those with a
function that gets the convolution: its name, its node, or a value of qtool that holds one of them.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

STEPS = ("plan", "convert", "write and verify")
LAYER, DEPTH, ENTRIES = "the_convolution", 2, 8
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


# ------------------------------------------------------------------------------- one convolution


def walk() -> dict[str, list[list[str]]]:
    """Step -> modules in which a function ran, and those of them that got the convolution."""
    import torch

    import qtool

    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module(LAYER, torch.nn.Conv2d(3, 8, 3, padding=1))
    data = [torch.randn(8, 3, 8, 8) for _ in range(4)]
    root = str(Path(qtool.__file__).parent)
    captured = qtool.capture_model(model.eval(), data[0])
    steps: dict[str, list[list[str]]] = {}

    def traced(step: str, call: Any, *arguments: Any) -> Any:
        entered: set[str] = set()
        of_layer: set[str] = set()

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call" or not code.co_filename.startswith(root) or code.co_name[0] == "<":
                return
            module = code.co_filename.removeprefix(root)[1:]
            entered.add(module)
            if module not in of_layer and _has_layer(list(frame.f_locals.values()), DEPTH):
                of_layer.add(module)

        sys.setprofile(profile)
        try:
            return call(*arguments)
        finally:
            sys.setprofile(None)
            steps[step] = [sorted(entered), sorted(of_layer)]

    calibration = traced(STEPS[0], qtool.calibrate, captured, data)
    quantized = traced(STEPS[1], qtool.convert, captured, calibration)
    with TemporaryDirectory() as folder:
        traced(STEPS[2], quantized.export, Path(folder) / "model.onnx")
    return steps


def _has_layer(value: Any, depth: int) -> bool:
    """Return whether a value is the convolution's name or node, or holds one."""
    if isinstance(value, str):
        return value == LAYER
    kind = type(value)
    if kind.__module__ == "torch.fx.node":
        return getattr(value, "name", "") == LAYER
    if isinstance(value, Mapping):
        held = [*list(value)[:ENTRIES], *list(value.values())[:ENTRIES]]
    elif isinstance(value, list | tuple):
        held = list(value[:ENTRIES])
    elif kind.__module__.startswith("qtool") and not isinstance(value, type):
        held = list(getattr(value, "__dict__", {}).values())
    else:
        return False
    return depth > 0 and any(_has_layer(each, depth - 1) for each in held)


def _walked(tree: Path) -> dict[str, list[list[str]]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).absolute()), "--walk"],
        env={**os.environ, "PYTHONPATH": str(tree.absolute()), "OMP_NUM_THREADS": "1"},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    steps: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return steps


# -------------------------------------------------------------------------------------- printing


def _print_sizes(trees: list[dict[str, Size]]) -> None:
    print(f"{TITLES[0]:20}" + "".join(f"{title:>{WIDTH}}" for title in TITLES[1:]))
    names = sorted({n for tree in trees for n in tree} - {ALL})
    for name in (*names, ALL):
        rows = [tree.get(name, Size()).cells() for tree in trees]
        cells = [" -> ".join(map(str, dict.fromkeys(column))) for column in zip(*rows, strict=True)]
        print(f"{name:20}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))


def _print_walks(walks: list[dict[str, list[list[str]]]]) -> None:
    print("\none convolution: modules with a function that runs, with one that gets the layer")
    for step in STEPS:
        print(f"{step:20}" + " -> ".join(f"{len(w[step][0])}, {len(w[step][1])}" for w in walks))
    totals = [[len({m for s in STEPS for m in w[s][kind]}) for kind in (0, 1)] for w in walks]
    print(f"{ALL:20}" + " -> ".join(f"{ran}, {got}" for ran, got in totals))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path, nargs="*", help="checkouts, one or two")
    parser.add_argument("--walk", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.walk:
        print(json.dumps(walk()))
        return
    _print_sizes([measure(tree) for tree in options.trees])
    _print_walks([_walked(tree) for tree in options.trees])


if __name__ == "__main__":
    main()
