"""The table of mutants fits the sources and the tests, and no mutant survives."""

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.runner import ROOT, outcome
from tests.mutants.table import MUTANTS, Mutant

TESTS = ROOT / "tests"


def functions(path: Path) -> set[str]:
    """Return the names of the functions of a file, those of a class as CLASS::NAME."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owners = [("", tree.body), *((f"{each.name}::", each.body) for each in classes)]
    return {
        prefix + node.name
        for prefix, body in owners
        for node in body
        if isinstance(node, ast.FunctionDef)
    }


def unknown_tests(mutant: Mutant) -> list[str]:
    """Return the ids whose file or function does not exist."""
    split = [(test, *test.split("[")[0].split("::", 1)) for test in mutant.killers]
    return [
        test
        for test, file, name in split
        if not (TESTS / file).is_file() or name not in functions(TESTS / file)
    ]


def test_there_are_forty_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_occurs_once_and_the_tests_exist(mutant: Mutant) -> None:
    source = (ROOT / "qtool" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    ast.parse(source.replace(mutant.old, mutant.new))
    assert mutant.killers
    assert unknown_tests(mutant) == []


def test_a_test_that_does_not_exist_is_unknown() -> None:
    own = "mutants/test_mutants.py"
    tests = (f"{own}::functions", f"{own}::no_function", "no_file.py::functions")
    assert unknown_tests(MUTANTS[0]._replace(killers=tests)) == list(tests[1:])


@pytest.mark.matrix
def test_a_mutant_that_changes_nothing_survives() -> None:
    mutant = next(m for m in MUTANTS if m.file == "core/sqnr.py")
    assert outcome(mutant.killers, mutant._replace(new=f"{mutant.old}  # equal")) == "survived"
    assert outcome(mutant.killers, mutant) == "killed"


@pytest.mark.matrix
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_is_killed(mutant: Mutant) -> None:
    assert outcome(mutant.killers, mutant) == "killed"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no mutant"]) == 2
    assert "there is no mutant 'no mutant'" in capsys.readouterr().out
