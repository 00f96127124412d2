"""What holds for every statistic, and the walk over a tensor."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from qtool.core.errors import CalibrationError, DataError
from qtool.observers import Histogram, MinMax, MovingAverage, RangeStatistic, Statistic
from qtool.observers.statistic import chunks
from tests.observers.differential import assert_same_state, observed, tensor

Kind = Callable[[int | None], Statistic]

RangeKind = Callable[[int | None], RangeStatistic]

RANGES: list[RangeKind] = [MinMax, MovingAverage, Histogram]
KINDS: list[Kind] = [*RANGES]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_range = pytest.mark.parametrize("kind", RANGES)

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3),
    "sliced": lambda x: x[:, :, 1:, ::2],
    "expanded": lambda x: x[:1].expand(3, *x.shape[1:]),
    "one element": lambda x: x[0, 0, 0, 0],
    "no element": lambda x: x[:0],
}


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pieces_hold_every_element_once(
    layout: str, axis: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtool.observers.statistic.CHUNK", 7)
    x = LAYOUTS[layout](torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5))
    if axis is not None and x.dim() == 0:
        pytest.skip("a scalar has no axis")
    rows = [x.reshape(-1)] if axis is None else list(x.movedim(axis, 0).flatten(1))
    found: list[list[float]] = [[] for _ in rows]
    for first, piece in chunks(x, axis, rows=2):
        assert piece.dim() == 2
        assert piece.dtype == torch.float32
        assert piece.numel() <= 7
        for row, values in enumerate(piece.tolist(), start=first):
            found[row] += values
    assert [sorted(f) for f in found] == [sorted(r.tolist()) for r in rows]


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "transposed"])
def test_dense_float32_memory_is_not_copied(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.observers.statistic.CHUNK", 7)
    x = LAYOUTS[layout](torch.rand(2, 3, 4, 5))
    start, end = x.data_ptr(), x.data_ptr() + 4 * x.numel()
    assert all(start <= p.data_ptr() < end for _, p in chunks(x, None, rows=1))


@every_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("axis", [None, 1])
def test_nan_and_inf_are_refused_and_change_nothing(
    kind: Kind, bad: float, axis: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtool.observers.statistic.CHUNK", 1)  # good pieces follow the bad
    one, untouched = (observed(lambda: kind(axis), [torch.ones(2, 3)]) for _ in range(2))
    x = torch.full((2, 3), 9.0)
    x[1, 1] = bad
    with pytest.raises(DataError, match="NaN or Inf"):
        one.update(x)
    assert_same_state(one, untouched)


@every_kind
def test_a_float64_value_beyond_float32_is_refused(kind: Kind) -> None:
    with pytest.raises(DataError, match="beyond float32"):
        kind(None).update(torch.tensor([1e300], dtype=torch.float64))


@every_kind
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_only_floats_are_observed(kind: Kind, dtype: torch.dtype) -> None:
    with pytest.raises(DataError, match=str(dtype)):
        kind(None).update(torch.ones(2, dtype=dtype))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("axis", [None, 0])
def test_other_floats_count_as_their_float32_values(
    kind: Kind, dtype: torch.dtype, axis: int | None
) -> None:
    x = torch.randn(3, 50, dtype=torch.float64).to(dtype)
    assert_same_state(observed(lambda: kind(axis), [x]), observed(lambda: kind(axis), [x.float()]))


@every_kind
def test_batches_without_elements_are_nothing(kind: Kind) -> None:
    none = observed(lambda: kind(1), [torch.ones(0, 3), torch.ones(2, 0, 4)])
    assert (none.empty, none.channels) == (True, 0)
    assert_same_state(none, kind(1))
    some = observed(lambda: kind(1), [torch.ones(0, 3), torch.ones(2, 3), torch.ones(0, 3)])
    assert (some.empty, some.channels) == (False, 3)
    assert_same_state(some, observed(lambda: kind(1), [torch.ones(2, 3)]))


@every_range
def test_no_data_has_no_extent(kind: RangeKind) -> None:
    with pytest.raises(CalibrationError, match="no data"):
        kind(None).extent()


@every_kind
def test_merging_with_an_empty_one_changes_nothing(kind: Kind) -> None:
    full = observed(lambda: kind(0), [torch.randn(3, 9), torch.randn(3, 9)])
    left, right = kind(0), observed(lambda: kind(0), [])
    left.merge(full)
    assert_same_state(left, full)
    left.merge(right)
    assert_same_state(left, full)
    before = kind(0).from_state(full.state(), 0)
    left.update(torch.full((3, 1), 100.0))
    left.merge(full)
    assert_same_state(full, before)  # what was merged in is not shared


@every_kind
@pytest.mark.parametrize("x", [-torch.zeros(3), torch.tensor([0.0, -0.0]), torch.zeros(1)])
def test_the_two_zeros_are_one(kind: Kind, x: torch.Tensor) -> None:
    for array in observed(lambda: kind(None), [x]).state().values():
        assert not np.signbit(array[array == 0]).any()


@every_kind
def test_negative_axes_and_changed_shapes(kind: Kind) -> None:
    x = torch.randn(2, 3, 4)
    assert_same_state(observed(lambda: kind(-2), [x]), observed(lambda: kind(1), [x]))
    one = observed(lambda: kind(-1), [x])
    one.update(torch.randn(5, 4))  # another rank, the same channels
    assert one.channels == 4
    with pytest.raises(DataError, match="3 channels along axis -1"):
        one.update(torch.randn(4, 3))
    with pytest.raises(DataError, match="no axis"):
        kind(1).update(torch.randn(4))


@every_range
def test_a_channel_knows_only_its_own_values(kind: RangeKind) -> None:
    x = torch.randn(4, 3, 7) * torch.tensor([1e-6, 1.0, 1e6]).reshape(3, 1)
    together, alone = kind(1), [kind(None) for _ in range(3)]
    for batch in (x, 2 * x):
        together.update(batch)
        for c in range(3):
            alone[c].update(batch[:, c])
    low, high = together.extent()
    assert low.shape == high.shape == (3,)
    for c in range(3):
        assert alone[c].extent() == (low[c], high[c])
        assert low.dtype == torch.float64
        assert alone[c].extent()[0].dim() == 0


@every_kind
def test_only_like_is_merged_with_like(kind: Kind) -> None:
    one = observed(lambda: kind(0), [torch.ones(3, 2)])
    other_kind = KINDS[(KINDS.index(kind) + 1) % len(KINDS)]
    for other in (other_kind(0), kind(None), observed(lambda: kind(0), [torch.ones(4, 2)])):
        with pytest.raises(CalibrationError, match="cannot merge"):
            one.merge(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Histogram(None), Histogram(None, bins=64)),
        (MovingAverage(None), MovingAverage(None, momentum=0.5)),
    ],
)
def test_settings_must_agree(one: Statistic, other: Statistic) -> None:
    with pytest.raises(CalibrationError, match="made with"):
        one.merge(other)


@every_kind
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_restored_statistic_goes_on_as_if_nothing_was(kind: Kind, axis: int | None) -> None:
    one = observed(lambda: kind(axis), [torch.randn(3, 3)])
    again = kind(axis).from_state(one.state(), axis)
    assert_same_state(again, one)
    for s in (again, one):
        s.update(100 * torch.ones(3, 3))
    assert_same_state(again, one)
    assert_same_state(kind(axis).from_state(kind(axis).state(), axis), kind(axis))


@every_kind
def test_a_state_is_a_copy(kind: Kind) -> None:
    one = observed(lambda: kind(None), [tensor([1, 2])])
    state = one.state()
    restored = kind(None).from_state(state, None)
    for array in state.values():
        array[...] = 9
    for s in (one, restored):
        assert_same_state(s, observed(lambda: kind(None), [tensor([1, 2])]))


@every_kind
def test_a_tensor_that_needs_gradients_can_be_observed(kind: Kind) -> None:
    x = torch.ones(3, requires_grad=True)
    assert_same_state(
        observed(lambda: kind(None), [x * 2]), observed(lambda: kind(None), [tensor([2, 2, 2])])
    )


@every_kind
@pytest.mark.cuda
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_cuda_gives_the_same_state(kind: Kind, axis: int | None, factor: float) -> None:
    x = torch.randn(5, 7, 1000) * factor
    assert_same_state(observed(lambda: kind(axis), [x.cuda()]), observed(lambda: kind(axis), [x]))
