from __future__ import annotations

import pytest

from qtool.core.unique_names import all_unique, unique


@pytest.mark.parametrize(
    ("wanted", "taken", "given"),
    [
        ("a", set(), "a"),
        ("a", {"a"}, "a_2"),
        ("a", {"a", "a_2", "a_3"}, "a_4"),
        ("层", {"层"}, "层_2"),
        ("", {""}, "_2"),
    ],
)
def test_the_first_name_that_is_free(wanted: str, taken: set[str], given: str) -> None:
    assert unique(wanted, taken) == given


def test_a_name_wanted_once_is_kept_wherever_it_stands() -> None:
    assert all_unique(["a", "a", "a_2"]) == ("a", "a_3", "a_2")


def test_what_is_taken_makes_no_room() -> None:
    assert all_unique(["x", "y"], ["x"]) == ("x_2", "y")
