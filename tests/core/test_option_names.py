"""The tables of names are those of the registries; unknown names get a suggestion."""

from __future__ import annotations

from qtool.algorithms.registry import STEPS
from qtool.backends.table import FORMATS
from qtool.core import option_names
from qtool.core.observer_options import OPTIONS
from qtool.core.option_names import unknown_name
from qtool.observers import OBSERVERS
from qtool.planning import targets
from qtool.planning.recipe import ACCURACIES, MODES
from qtool.planning.targets import TARGETS
from qtool.search.choices import CHOICES


def test_the_tables_are_those_of_the_registries() -> None:
    assert tuple(t.name for t in targets._ALL) == option_names.TARGETS
    for name in option_names.TARGETS:
        machines = tuple(sorted(TARGETS[name].machines))
        known = machines if TARGETS[name].runtime == option_names.NATIVE else None
        assert option_names.TARGET_MACHINES.get(name, ()) == known
    formats = {f for name in option_names.TARGETS for f in TARGETS[name].file.formats}
    assert set(option_names.FORMATS) == formats
    assert tuple(OBSERVERS) == tuple(OPTIONS) == option_names.OBSERVERS
    assert set(MODES) == set(option_names.MODES)
    assert tuple(ACCURACIES) == option_names.ACCURACIES
    assert tuple(CHOICES) == option_names.CHOICES
    others = {r.name for used in FORMATS for r in used.other_runtimes}
    assert {option_names.NATIVE, *others} == set(option_names.RUNTIMES)
    assert {s.name for s in STEPS} - {"solve"} == set(option_names.STEPS)


def test_a_similar_name_is_suggested() -> None:
    known = ("onnxruntime", "qnn")
    assert unknown_name("target", "onnxrutime", known) == (
        "unknown target 'onnxrutime'; did you mean 'onnxruntime'? There are: onnxruntime, qnn"
    )
    assert unknown_name("target", "npu", known) == (
        "unknown target 'npu'; there are: onnxruntime, qnn"
    )
