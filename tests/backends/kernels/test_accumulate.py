"""Exactness of the accumulators, by the bound that chooses the arithmetic, against int64."""

import pytest
import torch
import torch.nn.functional as F

from qtool.backends.kernels import accumulate
from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
W = params(INT8, 0.1)


def codes(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    dtype = torch.uint8 if low == 0 else torch.int8
    return torch.randint(low, high, shape).to(dtype)


def exact_conv(x, zero, weight, bias, rank, pads, **attrs) -> torch.Tensor:
    """float64 over padded integers: every sum is below 2**53."""
    pairs = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    padded = F.pad(x.double() - zero, pairs)
    return CONV[rank](padded, weight.double(), bias.double(), **attrs).long()


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("size", [5, 16])
@pytest.mark.parametrize(
    ("rank", "channels", "groups", "stride", "dilation", "pads"),
    [
        (1, 8, 1, 2, 1, (1, 0)),
        (2, 64, 1, 1, 1, (1, 1, 1, 1)),  # where a Winograd form would be chosen, were there one
        (2, 6, 3, 2, 1, (0, 1, 2, 0)),
        (2, 8, 8, 1, 2, (2, 2, 2, 2)),
        (3, 4, 1, 1, 1, (1, 0, 1, 0, 1, 1)),
    ],
)
def test_conv_is_exact(batch, size, rank, channels, groups, stride, dilation, pads):
    x = codes(batch, channels, *[size] * rank)
    weight = codes(channels, channels // groups, *[3] * rank, low=-128, high=128)
    bias = torch.randint(-(2**20), 2**20, (channels,))
    attrs = {"stride": stride, "dilation": dilation, "groups": groups}
    sums = accumulate.conv_accumulator(params(UINT8, 1, 37), W, weight, bias, pads=pads, **attrs)
    want = exact_conv(x, 37, weight, bias, rank, pads, **attrs)
    assert torch.equal(sums(x).long(), want)


@pytest.mark.parametrize("nnpack_only", [False, True])
def test_conv_is_exact_at_the_edge_of_the_bound(nnpack_only):
    """Largest codes and weights whose sum still proves float32: no inexact algorithm hides."""
    channels = accumulate.FLOAT32_EXACT // (255 * 127 * 9)
    x = codes(16, channels, 8, 8)
    x[:8] = 255
    weight = torch.full((4, channels, 3, 3), 127, dtype=torch.int8)
    sums = accumulate.conv_accumulator(params(UINT8, 1, 0), W, weight, None, pads=1)
    if nnpack_only:  # without oneDNN torch would take NNPACK's Winograd form
        torch._C._set_mkldnn_enabled(False)
    try:
        got = sums(x)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert got.dtype == torch.float32
    want = exact_conv(x, 0, weight, torch.zeros(4), 2, (1, 1, 1, 1))
    assert torch.equal(got.long(), want)
    assert int(want.max()) > 0.99 * accumulate.FLOAT32_EXACT - 255 * 127 * 9


@pytest.mark.parametrize(("channels", "groups"), [(600, 1), (1200, 2)])
def test_beyond_the_bound_float32_is_left(channels, groups):
    x = codes(2, channels, 3, 3)
    x[0] = 255
    weight = codes(4, channels // groups, 3, 3, low=-128, high=128)
    weight[0] = 127
    bias = torch.tensor([2**30, -5, 7, 0])
    sums = accumulate.conv_accumulator(params(UINT8, 1, 0), W, weight, bias, pads=1, groups=groups)
    got = sums(x)
    assert got.dtype == torch.float64
    want = exact_conv(x, 0, weight, bias, 2, (1, 1, 1, 1), groups=groups)
    assert torch.equal(got.long(), want)
    assert int(want.max()) > accumulate.FLOAT32_EXACT


def test_sums_beyond_int32_wrap():
    weight = torch.full((1, 4), 127, dtype=torch.int8)
    bias = torch.tensor([2**31 - 1])
    sums = accumulate.linear_accumulator(params(UINT8, 1, 0), W, weight, bias)
    x = torch.full((1, 4), 255, dtype=torch.uint8)
    assert int(sums(x)) == 2**31 - 1 + 4 * 127 * 255 - 2**32


@pytest.mark.parametrize("inner", [7, 3000])
def test_linear_is_exact(inner):
    x, weight = codes(3, 5, inner), codes(11, inner, low=-128, high=128)
    bias = torch.randint(-1000, 1000, (11,))
    sums = accumulate.linear_accumulator(params(UINT8, 1, 200), W, weight, bias)
    want = (x.double() - 200) @ weight.double().T + bias
    assert torch.equal(sums(x).long(), want.long())


@pytest.mark.parametrize("inner", [7, 3000])
def test_matmul_is_exact(inner):
    a, b = codes(2, 3, inner), codes(2, inner, 5)
    sums = accumulate.matmul_accumulator(params(UINT8, 1, 0), params(UINT8, 1, 255))
    want = a.double() @ (b.double() - 255)
    assert torch.equal(sums(a, b).long(), want.long())


def test_weight_zero_points_are_subtracted_per_channel():
    weight = codes(3, 4)
    w = params(UINT8, [1.0, 1.0, 1.0], [1, 100, 255], axis=0)
    x = codes(2, 4)
    sums = accumulate.linear_accumulator(params(UINT8, 1, 5), w, weight, None)
    want = (x.double() - 5) @ (weight.double() - torch.tensor([[1], [100], [255]])).T
    assert torch.equal(sums(x).long(), want.long())


@pytest.mark.parametrize("rank", [1, 2])
def test_conv_transpose_is_exact(rank):
    x = codes(2, 4, *[5] * rank)
    weight = codes(4, 3, *[3] * rank, low=-128, high=128)
    bias = torch.randint(-99, 99, (3,))
    sums = accumulate.conv_transpose_accumulator(
        params(UINT8, 1, 9), W, weight, bias, stride=2, pads=1, output_padding=1
    )
    reference = {1: F.conv_transpose1d, 2: F.conv_transpose2d}[rank]
    want = reference(x.double() - 9, weight.double(), bias.double(), 2, 1, 1)
    assert torch.equal(sums(x).long(), want.long())


def test_subset_bound_is_attained():
    weight = torch.tensor([[3, -5, 7]])
    assert int(accumulate.subset_bound(weight, 0, 255, (1,))) == 10 * 255
    assert int(accumulate.subset_bound(weight, -100, 155, (1,))) == 10 * 155 + 5 * 100


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(2, 2), None, "2 axes"),
        (torch.zeros(2, 2, 3, 3), torch.zeros(3, dtype=torch.int32), "shape"),
        (torch.zeros(2, 2, 3, 3), torch.tensor([0, 2**31]), "overflows int32"),
    ],
)
def test_refuses(weight, bias, message):
    with pytest.raises(KernelError, match=message):
        accumulate.conv_accumulator(params(UINT8, 1), W, weight, bias)
