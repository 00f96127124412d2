"""Parameters of kernels, and tables of codes."""

import pytest
import torch

from qtool.backends.kernels.codes import all_codes, lookup
from qtool.backends.kernels.params import (
    channel_scales,
    check_bias,
    f32,
    per_tensor,
    same_params,
    spatial,
)
from qtool.core.errors import KernelError
from qtool.core.quant_params import torch_dtype
from qtool.core.types import INT8, INT16, UINT8
from tests.backends.kernels.ort_session import params


@pytest.mark.parametrize("qtype", [UINT8, INT8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_takes_the_entry_of_each_code(qtype, layout):
    codes = all_codes(params(qtype, 1)).reshape(2, 8, 4, 4).contiguous(memory_format=layout)
    kernel = lookup(all_codes(params(qtype, 1)).flip(0), qtype)
    want = (qtype.qmin + qtype.qmax - codes.long()).to(torch_dtype(qtype))
    assert torch.equal(kernel(codes), want)
    assert torch.equal(kernel(codes.transpose(0, 3)), want.transpose(0, 3))


def test_refuses_wide_codes():
    with pytest.raises(KernelError, match="8-bit"):
        all_codes(params(INT16, 1))


def test_per_tensor_gives_numbers():
    assert per_tensor(params(UINT8, 0.5, 7), "input") == (0.5, 7)
    with pytest.raises(KernelError, match="input has per-channel"):
        per_tensor(params(UINT8, [0.5, 1.0], 0, 0), "input")


def test_channel_scales_repeat_or_refuse():
    assert channel_scales(params(INT8, 0.5), 3) == [0.5] * 3
    assert channel_scales(params(INT8, [0.5, 1.0], 0, 0), 2) == [0.5, 1.0]
    with pytest.raises(KernelError, match="2 scales for 3"):
        channel_scales(params(INT8, [0.5, 1.0], 0, 0), 3)


def test_f32_rounds():
    assert f32(1 / 3) == float(torch.tensor(1 / 3))
    assert f32(1 / 3) != 1 / 3


def test_same_compares_type_scale_and_zero():
    a = params(UINT8, 0.5, 7)
    assert same_params(a, params(UINT8, 0.5, 7))
    for other in (params(INT8, 0.5, 7), params(UINT8, 0.25, 7), params(UINT8, 0.5, 8)):
        assert not same_params(a, other)


def test_bias_is_int32_codes():
    narrow, wide, large = params(INT8, 1), params(INT16, 1), torch.tensor([2**31, 0])
    assert check_bias(None, 2, narrow).tolist() == [0, 0]
    assert check_bias(torch.tensor([1, -2], dtype=torch.int32), 2, narrow).tolist() == [1, -2]
    for bad in (torch.tensor([0.5, 1.0]), large, torch.tensor([1])):
        with pytest.raises(KernelError, match="bias"):
            check_bias(bad, 2, narrow)
    assert check_bias(large, 2, wide).tolist() == large.tolist()  # sums of 64 bits


def test_spatial_expands_or_refuses():
    assert spatial(2, 3, "stride") == (2, 2, 2)
    assert spatial([1, 2], 2, "stride") == (1, 2)
    with pytest.raises(KernelError, match="stride has 2 values, expected 3"):
        spatial([1, 2], 3, "stride")
