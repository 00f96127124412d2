"""Which runtimes there are."""

from __future__ import annotations

import pytest

from qtool.backends.runtimes import RUNTIMES, runtime
from qtool.planning.targets import TARGETS


def test_runtimes_are_found_by_their_names() -> None:
    for name, found in RUNTIMES.items():
        assert found.name == name
        assert runtime(name) is found


def test_a_target_whose_runtime_cannot_be_asked_has_none() -> None:
    assert runtime(None) is None
    with pytest.raises(KeyError):
        runtime("none such")


def test_every_runtime_that_a_target_names_is_there() -> None:
    named = {t.runtime for t in TARGETS.values()} - {None}
    assert named
    assert named <= set(RUNTIMES)


def test_only_a_runtime_known_to_the_last_bit_is_audited() -> None:
    assert [r.name for r in RUNTIMES.values() if r.graph_readable] == ["onnxruntime"]
