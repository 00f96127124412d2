"""References: a module is imported at the first call, and what they name exists below them."""

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
import tomllib

import qtool
from qtool.core.on_use import OnUse, Table, load

CODE = """
import sys
from qtool.core.on_use import OnUse
call = OnUse("colorsys:rgb_to_hsv")
assert "colorsys" not in sys.modules
assert call(1, 1, 1) == (0.0, 0.0, 1)
assert "colorsys" in sys.modules
"""


def test_a_module_is_imported_at_the_first_call() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_arguments_and_result_are_those_of_the_function() -> None:
    assert OnUse("builtins:sorted")([1, 2], reverse=True) == [2, 1]
    assert load("math:pi") > 3


def reachable(value: object) -> Iterator[OnUse]:
    if isinstance(value, OnUse):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(reachable, value.values()))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from chain.from_iterable(reachable(getattr(value, f.name)) for f in fields(value))


def references() -> set[tuple[str, str]]:
    """The module that names a function -> "module:attribute"."""
    package = Path(qtool.__file__).parent
    files = [f for f in package.rglob("*.py") if "OnUse(" in f.read_text("utf-8")]
    names = [".".join(f.relative_to(package.parent).with_suffix("").parts) for f in files]
    modules = [import_module(name) for name in names if name != OnUse.__module__]
    return {
        (m.__name__, each.where) for m in modules for v in vars(m).values() for each in reachable(v)
    }


def test_what_is_named_is_there_and_not_above() -> None:
    """import-linter does not see such references, so the order of the layers is checked here."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (layers,) = (
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["qtool"]
    )
    layer = {name: i for i, row in enumerate(layers) for name in row.split(" | ")}
    for module, where in references():
        assert callable(load(where)), where
        own, other = (layer[name.split(".")[1]] for name in (module, where.partition(":")[0]))
        assert own <= other, (module, where)


def test_a_table_imports_a_value_when_it_is_read() -> None:
    table = Table[object]({"pi": "math:pi", "none": "no.such.module:name"})
    assert (list(table), table["pi"], "none" in table) == (["pi", "none"], math.pi, True)
    with pytest.raises(ModuleNotFoundError):
        table["none"]
    table["none"] = 1
    del table["pi"]
    assert dict(table) == {"none": 1}
