"""Scripts that count: paths, imports, the cost of an operator."""

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.operator_cost import FORMAT_LISTS, ROOT, cost, names_of, naming_lines
from benchmarks.paths import MARK, MASK, Tracer
from qtool.core.data import Batch, batches

PLAIN = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
MARKED = (PLAIN.view(np.uint32) & ~MASK | MARK).view(np.float32)


def _held(array: Any) -> Iterator[Any]:
    """Yield values that hold an array."""
    tensor = torch.from_numpy(array.copy())
    yield from (array, tensor, [array], {"x": (array,)}, Batch((tensor,)))
    yield itertools.chain([], [array])
    yield map(str, [array])
    yield batches([array])


@pytest.mark.parametrize(("array", "is_data"), [(PLAIN, False), (MARKED, True)])
def test_data_is_what_holds_a_marked_array(array: Any, is_data: bool) -> None:
    assert [Tracer().is_data(value) for value in _held(array)] == [is_data] * 8


def test_data_is_what_was_loaded() -> None:
    tracer, rows = Tracer(), object()
    assert not tracer.is_data(rows)
    tracer.loaded.append(rows)
    assert tracer.is_data([rows])


@pytest.mark.matrix
def test_data_and_a_convolution_take_short_ways() -> None:
    script = Path(__file__).parents[2] / "benchmarks/paths.py"
    words = [sys.executable, str(script), "quantize", "convolution"]
    done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE)
    stream = re.search(r"^quantize, stream: passed through (\d+)", done.stdout, re.MULTILINE)
    layer = re.search(r"^convolution: .* (\d+) get the layer", done.stdout, re.MULTILINE)
    assert stream is not None
    assert layer is not None
    assert int(stream[1]) <= 13  # reading items is shared with what judges files
    assert int(layer[1]) <= 27


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


def test_what_is_missing_is_named() -> None:
    text = "from qtool.core import sqnr, lost\nfrom qtool.core.sqnr import dB\nsqnr.sqnr; sqnr.gone"
    assert missing(text) == ["qtool.core.lost", "qtool.core.sqnr.dB", "sqnr.gone"]


SOURCE = '''"""About leaky_relu."""
KINDS = {"LeakyRelu", "Elu"}  # 2
# LEAKY_RELU
def leaky_relu(x):  # 4
    """LeakyRelu."""
    return x  # 6
aten.leaky_relu_.default, log_leaky_relu  # 7
F = "QLinearLeakyRelu ELU"  # 8
'''


def test_lines_with_a_name_and_functions_of_that_name_count() -> None:
    assert naming_lines(SOURCE, names_of("leaky_relu")) == {2, 4, 6, 7, 8}


def test_other_names_of_an_operator() -> None:
    assert naming_lines(SOURCE, names_of("exponential=elu")) == {2, 8}


def test_an_activation_function_with_two_integer_kernels_is_named_in_few_places() -> None:
    counts = cost(ROOT, "leaky_relu")
    places = {name: n for name, n in counts.items() if name not in FORMAT_LISTS}
    assert len(places) <= 15, "\n".join(places)
    assert sum(places.values()) <= 200
