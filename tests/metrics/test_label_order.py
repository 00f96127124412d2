"""Labels in another order than the outputs are recognised, other mistakes of a model are not."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.core.types import Array
from qtool.metrics.label_order import no_better_than_a_guess, other_order

LABELS = np.arange(90) % 3
RNG = np.random.default_rng(0)


def test_the_alphabetical_order_of_other_names() -> None:
    answers = np.array([2, 1, 0])[LABELS]
    answers[:5] = 1
    sentence = other_order(answers, LABELS, 3)
    assert "33% with these labels, and 97% in another order" in sentence
    assert "(label 0 is output 2, label 2 is output 0)" in sentence


@pytest.mark.parametrize(
    "answers",
    [LABELS, RNG.integers(0, 3, 90), np.zeros(90, int), np.where(RNG.random(90) < 0.5, LABELS, 0)],
    ids=["right", "random", "one class", "half right"],
)
def test_other_answers(answers: Array) -> None:
    assert other_order(answers, LABELS, 3) is None
    assert other_order(np.array([2, 1, 0]), LABELS[:3], 3) is None


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (LABELS, False),
        (np.where(RNG.random(90) < 0.5, LABELS, 0), False),
        (np.full(90, 2), True),
        (np.roll(LABELS, 1), True),
    ],
    ids=["right", "half right", "one class", "wrong"],
)
def test_a_model_that_does_not_know_its_data(answers: Array, said: bool) -> None:
    sentence = no_better_than_a_guess(answers, LABELS)
    assert (sentence is not None) == said
    if sentence is not None:
        assert "no more often than the most frequent label (30)" in sentence
        assert f"answers class {np.bincount(answers).argmax()} on " in sentence
    assert no_better_than_a_guess(answers[:40], LABELS[:40]) is None  # too few to say
    assert no_better_than_a_guess(answers, np.ones(90, int)) is None  # labels of one class
