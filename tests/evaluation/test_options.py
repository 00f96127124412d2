"""What a report is asked for: light to import, and results are kept by what they depend on."""

import subprocess
import sys
from dataclasses import replace

from qtool.evaluation.options import Goals, ReportOptions


def test_commands_take_their_defaults_without_loading_torch() -> None:
    code = "import sys, qtool.evaluation.options; print(*{'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_kept_results_depend_on_what_is_timed_alone() -> None:
    plain = ReportOptions()
    assert replace(plain, title="other", goals=Goals(drop=0.5)).mark == plain.mark
    others = (
        replace(plain, batch_sizes=(4,)),
        replace(plain, threads=(2,)),
        replace(plain, seconds=1),
    )
    assert all(other.mark != plain.mark for other in others)
