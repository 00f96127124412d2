"""What `import qtool` offers: the names of __all__, documented, imported when they are used."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_origin

import pytest

import qtool
from qtool.core import errors
from qtool.core.versions import own_version

FUNCTIONS = (
    "bench",
    "calibrate",
    "capture_model",
    "compare",
    "convert",
    "evaluate",
    "generate",
    "inspect",
    "load_data",
    "load_model",
    "load_onnx",
    "quantize",
    "quantize_by_blocks",
    "report",
    "verify",
    "use_process_group",
)
CLASSES = (
    "Bench",
    "Calibration",
    "CalibrationContents",
    "Captured",
    "Coverage",
    "Evaluation",
    "Exactness",
    "FileCheck",
    "Generation",
    "Goals",
    "ModelContents",
    "QuantPlan",
    "QuantizedModel",
    "Report",
    "ReportOptions",
    "SelfCheck",
    "Verification",
    "init_empty_weights",  # a context, called as a function
)
ERRORS = tuple(
    name for name, kind in vars(errors).items() if inspect.isclass(kind) and name != "annotations"
)


def rooms() -> Iterator[ModuleType]:
    """Every module of the library."""
    for found in pkgutil.walk_packages(qtool.__path__, "qtool."):
        if not found.name.startswith(("qtool.cli", "qtool.__main__")):
            yield importlib.import_module(found.name)


def test_the_names_are_those_people_need() -> None:
    assert set(FUNCTIONS) | set(CLASSES) | set(ERRORS) <= set(qtool.__all__)
    assert qtool.__all__ == sorted(set(qtool.__all__))


@pytest.mark.parametrize("name", qtool.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(qtool, name)
    if get_origin(found) is Literal:
        return  # it lists its values
    assert found.__name__ == name
    assert found.__module__.startswith("qtool.")
    assert inspect.getdoc(found)


def test_a_name_stays_what_it_is_when_every_room_is_loaded() -> None:
    """A room called like a function would take its place in the package once it is imported."""
    assert list(rooms())
    modules = {n for n in qtool.__all__ if isinstance(getattr(qtool, n), ModuleType)}
    assert not modules
    assert not {m.name for m in pkgutil.iter_modules(qtool.__path__)} & set(qtool.__all__)


def test_nothing_else_is_listed() -> None:
    assert {*dir(qtool)} == {*qtool.__all__, "__version__"}
    assert qtool.__version__ == own_version()


def test_type_checkers_see_the_names() -> None:
    """A stub exports a name that is imported as itself, and __all__ is of these."""
    package = Path(qtool.__file__).parent
    stub = ast.parse((package / "__init__.pyi").read_text())
    names = [n for line in stub.body if isinstance(line, ast.ImportFrom) for n in line.names]
    assert all(name.asname == name.name for name in names)
    assert sorted(name.name for name in names) == qtool.__all__
    assert (package / "py.typed").is_file()


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'qtool' has no attribute 'calibrated'"):
        _ = qtool.calibrated


@pytest.mark.parametrize("name", [*FUNCTIONS, "Calibration.load", "Calibration.merge"])
def test_public_functions_say_what_they_raise(name: str) -> None:
    found = qtool
    for part in name.split("."):
        found = getattr(found, part)
    text = inspect.getdoc(found)
    assert "Raises:" in text or "see there for arguments and errors" in text
    for raised in ERRORS:
        if f"{raised}:" in text:
            assert hasattr(qtool, raised)


def test_errors_are_one_tree_with_one_root() -> None:
    assert all(issubclass(getattr(errors, name), errors.QtoolError) for name in ERRORS)
    assert all(name in errors.__doc__ for name in ERRORS)
    assert all(inspect.getdoc(getattr(errors, name)) for name in ERRORS)


def test_every_room_says_what_it_is_and_has_what_it_exports() -> None:
    for module in rooms():
        assert module.__doc__, module.__name__
        missing = [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)]
        assert missing == [], module.__name__


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_are_documented(name: str) -> None:
    members = vars(getattr(qtool, name)).items()
    methods = {n: m for n, m in members if not n.startswith("_") and callable(m)}
    obvious = {"to_json", "observed", "rows", "point", "decision"}
    assert [n for n, m in methods.items() if not inspect.getdoc(m) and n not in obvious] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, qtool; print(*sorted({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_results_that_print_have_a_form_for_notebooks() -> None:
    results = [n for n in dir(qtool) if "summary" in dir(getattr(qtool, n))]
    results += ["QuantPlan"]
    assert {"QuantizedFile", "QuantizedModel", "Report", "FileCheck"} <= set(results)
    lacking = {n for n in results if not hasattr(getattr(qtool, n), "_repr_html_")}
    assert lacking == {"Generation"}  # its summary is a property
