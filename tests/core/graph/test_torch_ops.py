"""qtool's torch operators: values by hand, shapes of fakes, gradients where training needs them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from qtool.core.graph import torch_ops
from qtool.core.graph.torch_ops import per_channel
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.types import INT8, UINT8, QType

QUICK = settings(deadline=None, derandomize=True, database=None, max_examples=60)


def uint8(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_quantize_rounds_half_to_even_and_saturates() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, -500.0, 500.0])
    found = torch_ops.quantize(x, torch.tensor(0.5), uint8(10))
    assert found.tolist() == [10, 12, 12, 10, 0, 255]
    assert found.dtype == torch.uint8


def test_dequantize_per_tensor_and_per_channel() -> None:
    codes = uint8([[0, 10], [20, 255]])
    whole = torch_ops.dequantize(codes, torch.tensor(0.5), uint8(10), None)
    assert whole.tolist() == [[-5.0, 0.0], [5.0, 122.5]]
    rows = torch_ops.dequantize(codes, torch.tensor([0.5, 2.0]), uint8([0, 20]), 0)
    assert rows.tolist() == [[0.0, 5.0], [0.0, 470.0]]
    columns = torch_ops.dequantize(codes, torch.tensor([0.5, 2.0]), uint8([0, 20]), -1)
    assert columns.tolist() == [[0.0, -20.0], [10.0, 470.0]]


@QUICK
@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=20),
    st.floats(2.0**-10, 4.0, width=32),
    st.sampled_from([UINT8, INT8]),
    st.data(),
)
def test_the_operators_are_the_parameters_own_arithmetic(
    values: list[float], scale: float, qtype: QType, data: st.DataObject
) -> None:
    zero = torch.tensor(data.draw(st.integers(qtype.qmin, qtype.qmax)))
    params = QuantParams(qtype, torch.tensor(scale), zero)
    stored = zero.to(torch_dtype(qtype))
    x = torch.tensor(values)
    codes = torch_ops.quantize(x, params.scale, stored)
    assert torch.equal(codes, params.quantize(x))
    real = torch_ops.dequantize(codes, params.scale, stored, None)
    assert torch.equal(real, params.dequantize(codes))
    assert torch.equal(torch_ops.quantize(real, params.scale, stored), codes)


def test_pad_codes_pads_from_the_last_dimension() -> None:
    padded = torch_ops.pad_codes(uint8([[1, 2]]), [1, 0, 0, 1], 9)
    assert padded.tolist() == [[9, 1, 2], [9, 9, 9]]


@pytest.mark.parametrize("pads", [[1, 2, 1, 2], [0, 1, 2, 0]], ids=["even", "uneven"])
def test_conv_pads_as_onnx_does(pads: list[int]) -> None:
    x, w = torch.randn(2, 4, 6, 6), torch.randn(6, 2, 3, 3)
    top, left, bottom, right = pads
    expected = F.conv2d(F.pad(x, (left, right, top, bottom)), w, None, 2, 0, 1, 2)
    torch.testing.assert_close(torch_ops.conv(x, w, None, [2, 2], pads, [1, 1], 2), expected)


def test_conv_has_the_gradients_of_its_convolution() -> None:
    x, w = torch.randn(1, 2, 5, requires_grad=True), torch.randn(3, 2, 3, requires_grad=True)
    mine = torch_ops.conv(x, w, None, [1], [1, 0], [1], 1)
    theirs = F.conv1d(F.pad(x, (1, 0)), w)
    torch.testing.assert_close(
        torch.autograd.grad(mine.square().sum(), (x, w)),
        torch.autograd.grad(theirs.square().sum(), (x, w)),
    )


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_global_average_pool_keeps_rank(rank: int) -> None:
    x = torch.randn(2, 3, *[4] * (rank - 2))
    found = torch_ops.global_average_pool(x)
    assert found.shape == (2, 3, *[1] * (rank - 2))
    torch.testing.assert_close(found.flatten(1), x.flatten(2).mean(2))


FAKES = {
    "quantize": (torch_ops.quantize, (torch.zeros(2, 3), torch.tensor(1.0), uint8(0))),
    "dequantize": (torch_ops.dequantize, (uint8([[1, 2]]), torch.tensor(1.0), uint8(0), None)),
    "pad_codes": (torch_ops.pad_codes, (uint8([[1, 2]]), [1, 2, 3, 0], 7)),
}


@pytest.mark.parametrize(("operator", "args"), FAKES.values(), ids=FAKES.keys())
def test_fakes_have_the_shape_and_dtype_of_the_real_result(operator: Any, args: Any) -> None:
    real = operator(*args)
    with FakeTensorMode() as mode:
        moved = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        fake = operator(*moved)
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)


def test_per_channel_reshapes_to_broadcast() -> None:
    assert per_channel(torch.arange(3), 1, 4).shape == (1, 3, 1, 1)
    assert per_channel(torch.arange(3), -1, 2).shape == (1, 3)
    assert per_channel(torch.tensor(3), None, 4).shape == ()
