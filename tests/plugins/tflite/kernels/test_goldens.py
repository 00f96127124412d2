"""Kernels of TFLite against recorded cases."""

import pytest
import torch

from qtool.backends.profiles import Profile, profile
from qtool.core.types import INT8, UINT8
from qtool.plugins.tflite.kernels.pool import average_pool
from tests.backends.kernels.golden import FOLDER, load, mismatches
from tests.backends.kernels.ort_session import params


def test_counted_pads_are_zeros_and_not_code_zero():
    zeros, x = torch.full((1, 1, 2, 2), -40, dtype=torch.int8), params(INT8, 0.5, -40)
    kernel = average_pool(x, x, kernel=(3, 3), stride=(1, 1), pads=1, count_include_pad=True)
    assert torch.equal(kernel(zeros), zeros)


def test_hard_swish_adds_its_zero_point_in_16_bits():
    """32612 + 196 is past int16: LiteRT 2.3.0 gives 0 for the largest code, not 255."""
    x, out = params(UINT8, 0.999218761920929, 0), params(UINT8, 1 / 128, 196)
    kernel = profile("tflite").bind("hard_swish", x, out)
    assert kernel(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [196, 0]
    below = params(UINT8, 1 / 128, 100)
    found = profile("tflite").bind("hard_swish", x, below)
    assert found(torch.tensor([255], dtype=torch.uint8)).tolist() == [255]


GROUPS = sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("group", GROUPS)
def test_equals_the_recorded_runtime(group):
    assert mismatches(group) == []


def test_every_operator_of_the_profile_is_recorded():
    recorded = {golden.op for group in GROUPS for golden in load(group)}
    # global_average_pool is mean, and passthrough has no arithmetic; dynamic_linear gives floats,
    # and is compared in export/.
    derived = {"dynamic_linear", "global_average_pool", "passthrough"}
    assert recorded | derived == set(profile("tflite").binders)


def test_refusals_are_recorded_too():
    refused = {golden.op for group in GROUPS for golden in load(group) if golden.expected is None}
    assert refused == {"add", "concat", "hard_swish", "sigmoid", "softmax", "sub"}


def test_the_comparison_sees_other_codes_other_types_and_missing_refusals():
    binders = profile("tflite").binders
    other_codes = Profile("other codes", {**binders, "sigmoid": binders["tanh"]})
    assert len(mismatches("sigmoid", other_codes)) == len(load("sigmoid"))
    other_type = Profile("other type", {**binders, "sigmoid": lambda x, out: lambda c: c.long()})
    assert len(mismatches("sigmoid", other_type)) == len(load("sigmoid"))
