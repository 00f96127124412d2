"""Kept samples are the same ones whatever the order, the split and the merge."""

import random
from pathlib import Path

import pytest
import safetensors.numpy
import torch

from qtool.core.data import calibration_samples as kept
from qtool.core.data.calibration_samples import CalibrationSamples, content_hash


def data(count: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 2, generator=torch.Generator().manual_seed(seed))


def of(*batches: torch.Tensor, limit: int = 8) -> CalibrationSamples:
    found = CalibrationSamples(limit)
    for batch in batches:
        found.update([batch], split=True)
    return found


def same(a: CalibrationSamples, b: CalibrationSamples) -> bool:
    left, right = a.state(), b.state()
    return list(left) == list(right) and all((left[k] == right[k]).all() for k in left)


def test_as_many_as_asked_for() -> None:
    assert len(of(data())) == 8
    assert len(of(data(3))) == 3
    assert len(of(data(), limit=0)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_order_split_and_merge_do_not_matter(seed: int) -> None:
    whole, draw = of(data()), random.Random(seed)
    rows = list(data().split(1))
    draw.shuffle(rows)
    cut = draw.randrange(1, len(rows))
    assert same(of(torch.cat(rows)), whole)
    first, second = of(*rows[:cut]), of(torch.cat(rows[cut:]))
    first.merge(second)
    assert same(first, whole)


def test_equal_samples_count_once() -> None:
    assert same(of(data(), data()), of(data()))


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_differ_are_bounded_in_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_BYTES", 400)
    draw = random.Random(seed)
    rows = [torch.full((1, n), float(n)) for n in range(1, 60)]
    whole = of(*rows, limit=50)
    assert 0 < sum(s.size for s in whole) <= 400
    draw.shuffle(rows)
    halves = of(*rows[:20], limit=50), of(*rows[20:], limit=50)
    halves[0].merge(halves[1])
    assert same(halves[0], whole)


def test_the_state_reads_back_and_damage_is_noticed() -> None:
    found = of(data())
    assert same(CalibrationSamples.from_state(8, found.state()), found)
    state = found.state()
    state[next(iter(state))][0, 0] += 1
    with pytest.raises(ValueError, match="hash"):
        CalibrationSamples.from_state(8, state)


def test_strides_leave_no_trace() -> None:
    images = torch.randn(8, 3, 4, 4).to(memory_format=torch.channels_last)
    found = of(images)
    assert same(found, of(images.contiguous()))
    assert all(t.is_contiguous() for sample in found for t in sample.tensors)


def test_batches_hold_every_sample_once_in_a_fixed_order() -> None:
    rows = [*data(5).split(1), *torch.randn(6, 3, 4).split(1)]
    found = of(*rows, limit=20)
    learned, aside = found.batches(3), found.batches(3, holdout=True)
    assert all(len(b[0]) <= 3 for b in learned + aside)
    assert [sum(len(b[0]) for b in part) for part in (learned, aside)] == [
        found.n_train,
        11 - found.n_train,
    ]
    each = [x for (b,) in learned + aside for x in b]
    assert len({x.numpy().tobytes() for x in each}) == 11
    assert sum(len(b[0]) for b in found.batches(3, 5)) == 5
    again = of(*rows[::-1], limit=20).batches(3)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(learned, again, strict=True))


@pytest.mark.parametrize("count", [24, 47, 60, 96, 400])
def test_each_sample_has_one_role(count: int) -> None:
    found = of(data(count, seed=count), limit=400)
    parts = [found.batches(400), found.batches(400, holdout=True), found.estimates(400)]
    rows = [{x.numpy().tobytes() for (b,) in part for x in b} for part in parts]
    assert sum(map(len, rows)) == len(set.union(*rows)) == count
    assert bool(rows[2]) is found.held_out is (count >= 60)
    assert len(rows[1]) >= count // 5 - 6


@pytest.mark.parametrize("seed", range(5))
def test_roles_do_not_depend_on_the_parts_that_are_merged(seed: int) -> None:
    whole, draw = of(data(200), limit=90), random.Random(seed)
    rows = list(data(200).split(1))
    draw.shuffle(rows)
    first, second = of(*rows[:70], limit=90), of(*rows[70:], limit=90)
    first.merge(second)
    for one, other in (
        (first.estimates(200), whole.estimates(200)),
        (first.batches(200), whole.batches(200)),
        (first.batches(200, holdout=True), whole.batches(200, holdout=True)),
    ):
        assert all(torch.equal(a, b) for (a,), (b,) in zip(one, other, strict=True))


def test_too_few_samples_are_all_for_steps() -> None:
    few = of(data(20), limit=90)
    assert len(few) == 20
    assert few.estimates(32) == []
    few.merge(of(data(180, seed=1), limit=90))
    assert few.held_out
    assert not {s.content_hash for s in few} & {
        content_hash([x[None]]) for (b,) in few.estimates(200) for x in b
    }


def test_the_estimate_is_of_whole_texts(tmp_path: Path) -> None:
    rest, texts = data(80), data(80, seed=1)
    found = CalibrationSamples(90)
    found.update([rest], split=True, whole=[texts])
    safetensors.numpy.save_file(found.state(), tmp_path / "state")
    state = safetensors.numpy.load_file(tmp_path / "state")
    for each in (found, CalibrationSamples.from_state(90, state, found.total, found.bounds)):
        ((held,),) = each.estimates(90)
        assert len(held) > 8
        assert all((texts == text).all((1, 2)).any() for text in held)
        steps = torch.cat([b for (b,) in each.batches(90, holdout=None)])
        assert all((rest == row).all((1, 2)).any() for row in steps)


def test_a_large_tensor_waits_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    here = of(data())
    monkeypatch.setattr(kept, "SPOOLED", 1)
    assert same(of(data()), here)


def test_a_batch_without_a_sample_dimension_is_one_sample() -> None:
    found = CalibrationSamples(4)
    found.update([data(5), torch.ones(())], split=False)
    assert [t.shape for t in next(iter(found)).tensors] == [(5, 3, 2), ()]


def test_batches_that_were_not_split_are_as_they_came() -> None:
    given = [(torch.full((3, 2), float(i)), torch.tensor(float(i))) for i in range(4)]
    kept = CalibrationSamples(8)
    for tensors in given:
        kept.update(tensors, split=False)
    found = kept.batches(32, holdout=None)
    assert sorted(float(scalar) for _, scalar in found) == [0.0, 1.0, 2.0, 3.0]
    assert all(x.shape == (3, 2) for x, _ in found)
