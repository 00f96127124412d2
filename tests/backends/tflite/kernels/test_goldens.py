"""Every recorded output of LiteRT's reference kernels, with no tolerance."""

from __future__ import annotations

import pytest

from qtool.backends.profiles import PROFILES, Profile
from tests.backends.kernels.golden import FOLDER, load, mismatches

GROUPS = sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("group", GROUPS)
def test_equals_the_recorded_runtime(group):
    assert mismatches(group) == []


def test_every_operator_of_the_profile_is_recorded():
    recorded = {golden.op for group in GROUPS for golden in load(group)}
    # global_average_pool is mean, and passthrough has no arithmetic; dynamic_linear gives floats,
    # and is compared in export/.
    derived = {"dynamic_linear", "global_average_pool", "passthrough"}
    assert recorded | derived == set(PROFILES["tflite"].binders)


def test_refusals_are_recorded_too():
    refused = {golden.op for group in GROUPS for golden in load(group) if golden.expected is None}
    assert refused == {"add", "concat", "hard_swish", "sigmoid", "softmax", "sub"}


def test_the_comparison_sees_other_codes_other_types_and_missing_refusals():
    binders = PROFILES["tflite"].binders
    other_codes = Profile("other codes", {**binders, "sigmoid": binders["tanh"]})
    assert len(mismatches("sigmoid", other_codes)) == len(load("sigmoid"))
    other_type = Profile("other type", {**binders, "sigmoid": lambda x, out: lambda c: c.long()})
    assert len(mismatches("sigmoid", other_type)) == len(load("sigmoid"))
