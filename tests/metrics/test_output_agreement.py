"""Yardsticks of outputs: kinds, values by hand, and what they warn of."""

from typing import Any

import numpy as np
import pytest

from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.metrics.expected_agreement import expected_same_decision
from qtool.metrics.output_agreement import output_agreement
from qtool.metrics.output_kind import CLASS, COSINE, DECISION, NUMBERS, PIXEL, THRESHOLD, TOKEN
from qtool.verification.fidelity import compare_outputs

generator = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return generator.normal(size=shape).astype(np.float32)


def softmax(x: np.ndarray[Any, Any], axis: int = -1) -> np.ndarray[Any, Any]:
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    scores: np.ndarray[Any, Any] = 1 / (1 + np.exp(-x))
    return scores


def coordinates(*shape: int) -> np.ndarray[Any, Any]:
    """Values anywhere in 0 to 1."""
    return generator.random(shape).astype(np.float32)


def areas(classes: int) -> np.ndarray[Any, Any]:
    """Scores [4, classes, 16, 16] of vertical stripes."""
    best = np.arange(16) * classes // 16
    scores = (best[None, :] == np.arange(classes)[:, None]).astype(np.float32)
    return np.broadcast_to(scores[None, :, None, :], (4, classes, 16, 16)) * 3 - 1


UNIT = normal(20, 8) / 1e3
UNIT = UNIT / np.linalg.norm(UNIT, axis=1, keepdims=True)
KINDS: dict[str, tuple[str, np.ndarray[Any, Any], str | None]] = {
    "numbers without evidence": ("output", normal(20, 10), NUMBERS),
    "logits of classes": ("logits", normal(20, 10), CLASS),
    "characters": ("softmax_2.tmp_0", softmax(normal(4, 30, 50)), TOKEN),
    "segmentation": ("logits", areas(5), PIXEL),
    "offsets that form areas": ("output", areas(2) * normal(4, 1, 1, 1), NUMBERS),
    "its probabilities": ("output", softmax(areas(3), 1), PIXEL),
    "an image": ("output", generator.random((4, 3, 16, 16)).astype(np.float32), NUMBERS),
    "labels": ("output", sigmoid(8 * normal(20, 7)), THRESHOLD),
    "a mask": ("output", sigmoid(20 * areas(2)[:, :1] - 20), THRESHOLD),
    "logits of a mask": ("mask_logits", areas(2)[:, :1], THRESHOLD),
    "a disparity": ("output", coordinates(20, 10) ** 4, NUMBERS),
    "boxes by a sigmoid": ("output", sigmoid(normal(4, 300, 4)), NUMBERS),
    "unit vectors": ("output", UNIT, COSINE),
    "an embedding": ("embedding", normal(20, 64), COSINE),
    "states": ("last_hidden_state", normal(2, 9, 64), COSINE),
    "a series": ("output", normal(20), NUMBERS),
    "weights of attention": ("attn", softmax(normal(4, 9, 9)), NUMBERS),
    "always one class": (
        "logits",
        normal(20, 10) * 0.01 + np.eye(10, dtype=np.float32)[3],
        CLASS,
    ),
    "zeros": ("output", np.zeros((20, 10), np.float32), NUMBERS),
    "one number": ("output", np.ones((20, 1), np.float32), NUMBERS),
    "whole numbers": ("output", np.arange(20), "equal"),
    "NaN": ("output", np.full((20, 10), np.nan, np.float32), None),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds(case: str) -> None:
    name, real, kind = KINDS[case]
    same = output_agreement(name, real, real.copy())
    assert (None if same is None else same.kind) == kind
    if same is not None:
        assert same.value == pytest.approx(1)
        assert same.kl in (None, pytest.approx(0, abs=1e-6))
        broken = output_agreement(
            name, real, np.full_like(real, np.nan if real.dtype.kind == "f" else -1)
        )
        assert broken.value < 0.6


@pytest.mark.parametrize("kind", [CLASS, THRESHOLD, COSINE, NUMBERS])
def test_a_user_names_the_kind(kind: str) -> None:
    real = normal(20, 6)
    assert output_agreement("y", real, real, Evidence(kind=kind)).kind == kind


def test_no_sample_shows_what_a_detector_of_rare_events_detects() -> None:
    real = sigmoid(normal(20, 1) - 6)
    agreement = output_agreement("wake", real, real + 1e-3, Evidence(ending="sigmoid"))
    assert (agreement.compared, str(agreement)) == (0, "no value above 0.5")
    fidelity = compare_outputs(20, ["y"], [real], [real], {"y": Evidence(ending="sigmoid")})
    assert any("none shows what it detects" in note for note in fidelity.notes())


def test_a_probability_of_each_sample_is_a_decision() -> None:
    """One of silero's networks kept R2 0.997 and lost 1.8 % of the decisions."""
    odds = 1.5 * normal(4000, 1)
    real, coded = sigmoid(odds), sigmoid(odds + 0.06 * normal(4000, 1))
    truth = ((real > 0.5) == (coded > 0.5)).mean()
    known = Evidence(ending="sigmoid")
    same = output_agreement("output", real[:10], coded[:10], known, real[10:])
    assert (same.kind, same.value) == (DECISION, 1)
    assert same.expected < 1
    assert same.headline == f"same decision {100 * same.expected:.3g} % expected"
    draws = [generator.choice(4000, 48, replace=False) for _ in range(99)]
    each = [expected_same_decision(real[d[:10]], coded[d[:10]], real[d[10:]]) for d in draws]
    assert np.mean(each) == pytest.approx(truth, abs=0.005)
    assert expected_same_decision(real[:7], coded[:7]) is None
    sure = sigmoid(9 * np.sign(odds[:40]))
    assert expected_same_decision(sure, sigmoid(5 * np.sign(odds[:40]))) == 1
    assert output_agreement("output", real, coded).kind == NUMBERS


def test_numbers_that_do_not_vary_show_nothing() -> None:
    real, other = np.zeros((20, 4), np.float32), normal(20, 4)
    alone = compare_outputs(20, ["y"], [real], [real])
    assert (alone.blind, alone.difference) == ("output 'y'", "")
    assert any("one value in all samples" in note for note in alone.notes())
    both = compare_outputs(20, ["y", "z"], [real, other], [real, other + 1e-4])
    assert not both.blind
    assert not any("one value" in note for note in both.notes())
    wrong = compare_outputs(20, ["y"], [real + 1], [real + 1.2])
    assert wrong.difference == "SQNR 14.0 dB"


def test_one_class_in_all_samples_proves_little() -> None:
    real = normal(40, 10) * 0.01 + np.eye(10, dtype=np.float32)[3]
    same = output_agreement("logits", real, real + 1e-3)
    assert (same.compared, str(same)) == (0, "one class in all samples")
    assert "equal ones prove little" in str(compare_outputs(40, ["logits"], [real], [real]))
    other = output_agreement("logits", real, np.roll(real, 1, 1))
    assert (other.compared, other.value, other.caution) == (40, 0.0, "")
    loud = compare_outputs(40, ["logits"], [real], [real + 0.05 * normal(40, 10)])
    assert loud.difference.startswith("SQNR")


def test_a_false_alarm_is_said() -> None:
    real = sigmoid(normal(20, 1) - 6)
    alarm = output_agreement("wake", real, real + 0.7, Evidence(ending="sigmoid"))
    assert str(alarm) == "the quantized model alone has values above 0.5"


def test_rows_that_topk_selects_are_a_set_and_those_that_values_decide_are_left_out() -> None:
    boxes, logits = normal(6, 8, 4), normal(6, 8, 5)
    orders = [generator.permutation(8) for _ in range(6)]
    others = [np.stack([a[o] for a, o in zip(x, orders, strict=True)]) for x in (boxes, logits)]
    rows = {"boxes": Evidence(rows=8), "logits": Evidence(rows=8), "kept": Evidence(rows=BY_VALUES)}
    fidelity = compare_outputs(
        6, list(rows), [boxes, logits, normal(3, 4)], [*others, normal(5, 4)], rows
    )
    assert [each.sqnr_db for each in fidelity.outputs] == [None, None]
    assert [each.value for each in fidelity.estimate.agreements] == [1.0, 1.0]
    assert any("values decide how many rows 'kept' has" in note for note in fidelity.notes())


def test_values_by_hand() -> None:
    real, noise = normal(200, 10), normal(200, 10)
    classes = output_agreement("logits", real, real + 0.3 * noise)
    assert classes.value == (real.argmax(1) == (real + 0.3 * noise).argmax(1)).mean()
    numbers = output_agreement("price", real, real + 0.1 * noise)
    kept = 1 - 0.01 * np.square(noise).sum() / np.square(real - real.mean(0)).sum() * 199 / 200
    assert numbers.value == pytest.approx(kept, rel=1e-6)
    p, q = softmax(normal(2, 9, 30)), softmax(normal(2, 9, 30))
    tokens = output_agreement("out", p, q)
    assert tokens.kl == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-4)
    logits = output_agreement("logits", np.log(p) + 7, np.log(q) - 2)
    assert logits.kl == pytest.approx(tokens.kl, rel=1e-4)
    a, b = np.array([[0.95, 0.6, 0.1, 0.02, 0.01, 0]]), np.array([[0.8, 0.4, 0.3, 0.1, 0, 0]])
    mask = output_agreement("mask", a, b)
    assert (mask.value, mask.threshold, mask.compared) == (pytest.approx(2 / 3), 0.5, 6)


def test_padding_does_not_count() -> None:
    real, other = normal(2, 6, 9), normal(2, 6, 9)
    real[:, 4:] = other[:, 4:] = 0
    agreement = output_agreement("logits", real, other)
    assert agreement.compared == 8


@pytest.mark.parametrize(
    ("noise", "warning"), [(0.02, None), (0.15, None), (4.0, "'out' is hardly of use (same token ")]
)
def test_warnings_follow_the_yardstick(noise: float, warning: str | None) -> None:
    """Clear texts, at 34, 16 and -12 dB."""
    best = generator.integers(0, 40, (4, 30))
    real = softmax(6 * np.eye(40, dtype=np.float32)[best])
    other = real + noise * real.max() * normal(*real.shape) / 6
    fidelity = compare_outputs(4, ["out"], [real], [other])
    assert (fidelity.worst < 20) == (noise > 0.1)
    assert (warning is None and fidelity.warning is None) or warning in str(fidelity.warning)
    assert "; same token " in fidelity.row()[1]


def test_scores_that_hardly_differ_are_of_no_use_above_20_db() -> None:
    real = softmax(0.05 * normal(100, 10))
    other = real + 0.006 * normal(100, 10)
    fidelity = compare_outputs(100, ["probabilities"], [real], [other])
    assert 20 < fidelity.worst < 30
    assert "'probabilities' is hardly of use (same class" in str(fidelity.warning)


def test_a_cache_is_judged_by_what_reads_it() -> None:
    real, noise = normal(1, 30, 50), normal(1, 30, 50)
    cache = generator.integers(-100, 100, (1, 2, 30, 8)).astype(np.int8)
    values = normal(1, 2, 30, 8)
    fidelity = compare_outputs(
        1,
        ["logits", "present.0.key", "present.0.value"],
        [real, cache, values],
        [real + 0.01 * noise, cache + 1, values + 0.5 * normal(1, 2, 30, 8)],
    )
    assert fidelity.warning is None
    assert "equal" not in fidelity.row()[1]


def test_scores_with_nan_are_another_class() -> None:
    """The index of the largest score is that of the first NaN."""
    real = normal(20, 10)
    broken = real.copy()
    broken[np.arange(20), real.argmax(1)] = np.nan
    agreement = output_agreement("logits", real, broken)
    assert agreement.value == 0


def test_changes_of_class_are_expected_by_margins() -> None:
    rng = np.random.default_rng(0)
    real = 2 * rng.normal(size=(4096, 5))
    coded = real + 0.04 * rng.normal(size=real.shape)
    truth = float((real.argmax(1) == coded.argmax(1)).mean())
    rows = [rng.choice(4096, 12, replace=False) for _ in range(200)]
    each = [output_agreement("logits", real[r], coded[r]) for r in rows]
    counted, expected = (
        np.array([getattr(e, name) for e in each]) for name in ("value", "expected")
    )
    assert abs(expected.mean() - truth) < 0.003
    assert np.abs(expected - truth).mean() < 0.7 * np.abs(counted - truth).mean()
    more = real[rng.choice(4096, 60, replace=False)]
    others = [output_agreement("logits", real[r], coded[r], more=more) for r in rows]
    wider = np.array([e.expected for e in others if e is not None])
    assert np.abs(wider - truth).mean() < 0.8 * np.abs(expected - truth).mean()
    unseen = next(e for e in each if e is not None and e.value == 1 and not e.is_near)
    assert unseen.headline.endswith("% expected")
    many = output_agreement("logits", real, coded)
    assert many is not None
    assert many.expected is None
    assert many.value == truth
