"""Former and current names of steps."""

from __future__ import annotations

from qtool.algorithms.registry import STEPS
from qtool.core.step_names import FORMER_NAMES, current_step_name, former_step_name


def test_every_former_name_leads_to_a_step_and_back() -> None:
    names = {step.name for step in STEPS}
    for former, name in FORMER_NAMES.items():
        assert name in names
        assert current_step_name(former) == current_step_name(name) == name
        assert former_step_name(name) == former_step_name(former) == former


def test_other_names_stay() -> None:
    assert current_step_name("solve") == former_step_name("solve") == "solve"
