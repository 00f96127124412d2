"""Statistics of sets, against values by hand and scikit-learn.

What takes seconds to import is imported by the tests that need it: each process collects all tests.
"""

import numpy as np
import pytest

from qtool.metrics.ranks import rank_correlation
from qtool.metrics.set_statistics import (
    average_precision,
    decode,
    f1_terms,
    mean_f1,
    recall_hits,
    word_errors,
)

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.normal(size=(200, 4))
CLASSES = GENERATOR.integers(0, 4, 200)
FLAGS = GENERATOR.random((200, 4)) < 0.3


def test_f1() -> None:
    from sklearn import metrics

    terms, _ = f1_terms(SCORES, SCORES, CLASSES)
    assert mean_f1(terms) == pytest.approx(
        metrics.f1_score(CLASSES, SCORES.argmax(1), average="macro")
    )
    terms, _ = f1_terms(SCORES, SCORES, FLAGS)
    assert mean_f1(terms) == pytest.approx(metrics.f1_score(FLAGS, SCORES > 0, average="micro"))


def test_average_precision() -> None:
    from sklearn import metrics

    expected = metrics.average_precision_score(FLAGS, SCORES, average="macro")
    assert average_precision(np.stack([SCORES, FLAGS], 1)) == pytest.approx(expected)


def test_spearman() -> None:
    from scipy import stats

    terms = np.stack([SCORES[:, 0], CLASSES], 1)
    assert rank_correlation(*terms.T) == pytest.approx(stats.spearmanr(*terms.T).statistic)


def test_recall() -> None:
    vectors = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.8, 0.3], [0.1, 1]])
    groups = np.array([0, 0, 1, 1, 2])
    assert recall_hits(vectors, groups, 1).tolist() == [True, True, False, False]
    assert recall_hits(vectors, groups, 4).tolist() == [True, True, True, True]
    assert recall_hits(vectors, groups, 3).tolist() == [True, True, True, False]


def test_word_errors() -> None:
    steps = np.eye(4)[[[1, 1, 0, 1, 2, 2]]]
    assert decode(steps, 0) == [[1, 1, 2]]
    errors = word_errors([[1, 1, 2], [], [3, 1]], np.array([[1, 2, -1], [1, 2, 3], [3, 1, 2]]))
    assert errors.tolist() == [[1, 2], [3, 3], [1, 3]]
