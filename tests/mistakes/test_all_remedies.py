"""No remedy is forgotten by the tests that apply them."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from qtool.core import remedies
from tests.mistakes import test_call_edits, test_data_edits, test_model_edits, test_other_files
from tests.mistakes.remedies import calls_of_remedies, rows, texts_of
from tests.mistakes.test_remedies import COMMANDS
from tests.mistakes.test_remedies_of_calls import CALLS

ELSEWHERE = rows("elsewhere.txt")
APPLIED: dict[str, set[str]] = {
    "CallEdit": {*test_call_edits.EDITS},
    "ModelEdit": {*test_model_edits.EDITS},
    "DataEdit": {*test_data_edits.EDITS} | test_data_edits.CODE,
    "OtherFile": {*test_other_files.EDITS},
    "Setup": set(),
    "Package": set(),
}
"""Kind -> texts of the remedies that are applied here."""


@pytest.mark.parametrize("kind", APPLIED)
def test_all_texts_are_applied(kind: str) -> None:
    _check(texts_of(kind), APPLIED[kind], kind)


def test_all_arguments_are_applied() -> None:
    folder = Path(remedies.__file__).parents[1]
    sites = {
        f"{path.relative_to(folder).with_suffix('').as_posix()} {call.args[0].value}"
        for kind, path, call in calls_of_remedies()
        if kind in ("Argument", "Omission") and path.is_relative_to(folder)
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    commands = (sites for sites, *_ in COMMANDS.values())
    applied = set().union(*commands, *(sites for _, sites in CALLS.values()))
    arguments = {site for site in applied if site.partition(" ")[2].startswith("-")}
    _check(sites, arguments, "Argument")


def test_each_kind_of_remedy_has_a_table() -> None:
    kinds = {kind.__name__ for kind in get_args(remedies.Remedy)}
    assert kinds == {"Argument", "Omission"} | APPLIED.keys()


def _check(known: set[str], applied: set[str], kind: str) -> None:
    elsewhere = {text for each, text, _ in ELSEWHERE if each == kind}
    assert known <= applied | elsewhere
    assert elsewhere <= known - applied
