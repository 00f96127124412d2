"""What a report is asked for: light to import, and results are kept by what they depend on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from qtool.core.errors import OptionError
from qtool.evaluation.options import Goals, ReportOptions


def test_commands_take_their_defaults_without_loading_torch() -> None:
    code = "import sys, qtool.evaluation.options; print(*{'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_kept_results_depend_on_what_is_timed_alone() -> None:
    plain = ReportOptions()
    assert replace(plain, title="other", goals=Goals(drop=0.5)).mark == plain.mark
    for other in ({"batch_sizes": (4,)}, {"threads": (2,)}, {"seconds": 1.0}):
        assert replace(plain, **other).mark != plain.mark


@pytest.mark.parametrize(
    "options",
    [{"seconds": nan}, {"budget": inf}, {"samples": 0}, {"threads": (0,)}, {"batch_sizes": (-1,)}],
)
def test_an_option_out_of_its_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"ReportOptions\.{next(iter(options))} is "):
        ReportOptions(**options)
