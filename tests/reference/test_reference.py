"""What commands print and write, and which modules they load, is what is committed.

A difference is a change that users see: wanted, listed and committed with the change by
`python -m tests.reference --update`, or a fault.
"""

from pathlib import Path

import pytest

from tests.reference.both_installs import check_values
from tests.reference.cases import CASES, GROUPS
from tests.reference.record import (
    EXPECTED,
    NAMES,
    QUICK,
    differences,
    of_another_arithmetic,
    record,
)
from tests.reference.text import difference

LINES = 30
"""Lines of a case's diff that are printed."""
SETS = {group: [n for n in cases if n not in QUICK] for group, cases in GROUPS.items()}
# a case that makes the files, then those that list modules
SETS = {"quick": QUICK, **SETS, "modules": ["gate", *(n for n in NAMES if n not in CASES)]}
SETS = {group: names for group, names in SETS.items() if names}


@pytest.mark.parametrize(
    "group", [pytest.param(g, marks=[pytest.mark.matrix] * (g != "quick")) for g in SETS]
)
def test_outputs_are_those_that_are_committed(group: str, tmp_path: Path) -> None:
    """A group is a test, since its cases share the files that they read."""
    check = check_values if group == "files" else None
    texts = record(SETS[group], tmp_path, check)
    left_out = of_another_arithmetic(texts)
    different = differences({n: text for n, text in texts.items() if n not in left_out})
    report = []
    for name, lines in different.items():
        report += [f"{name}:", *lines[2 : LINES + 2]]
        if (more := len(lines) - 2 - LINES) > 0:
            report.append(f"... {more} lines more: python -m tests.reference {name}")
    assert not report, "\n".join(report)
    if left_out:
        pytest.skip(f"{', '.join(left_out)}: of a processor with other kernels; the rest is equal")


def test_each_case_has_an_expectation_and_no_other_is_there() -> None:
    assert {file.stem for file in EXPECTED.glob("*.txt")} == set(NAMES)


def test_the_quick_part_has_all_help_texts() -> None:
    assert {name for name in CASES if name.startswith("help")} < set(QUICK)


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        ("SQNR  39.1 dB (450 samples)", "SQNR  39.1 dB (450 samples)", True),
        ("SQNR  39.1 dB (450 samples)", "SQNR  39.2 dB (450 samples)", True),
        ("SQNR  39.1 dB (450 samples)", "SQNR  38.1 dB (450 samples)", False),
        ("SQNR  39.1 dB (450 samples)", "SQNR  39.1 dB (451 samples)", False),
        ("SQNR  39.1 dB (450 samples)", "SQNR  39.1 dB (450 images)", False),
        ("SQNR  9.99 dB", "SQNR 10.00 dB", True),
        ('"scale": 3.55688e-05', '"scale": 3.55689e-05', True),
        ('"scale": 3.55688e-05', '"scale": 3.65689e-05', False),
        ('"sha256": "1e999999"', '"sha256": "2e999999"', False),
    ],
)
def test_numbers_of_another_machine_are_close_and_words_and_integers_equal(
    before: str, after: str, equal: bool
) -> None:
    assert (not difference(f"a\n{before}\nb", f"a\n{after}\nb", exact=False)) == equal
    assert (not difference(before, after, exact=True)) == (before == after)
