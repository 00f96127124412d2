"""Tables over 8-bit codes: order, types, layouts."""

from __future__ import annotations

import pytest
import torch

from qtool.backends.kernels.lookup import all_codes, lookup
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
