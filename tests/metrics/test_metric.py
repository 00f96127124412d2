"""Metrics and their intervals."""

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.evaluation import user_metrics as user_metrics_module
from qtool.evaluation.user_metrics import user_metrics
from qtool.metrics.intervals import bootstrap, exact_share_interval, paired_interval
from qtool.metrics.metric import make_metric


def test_bootstrap_covers_the_mean_of_a_known_law():
    """Of 200 samples of a coin, about 95 in 100 intervals hold the true share."""
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        found = bootstrap((generator.random(400) < 0.3).astype(float), resamples=400)
        held += found.low <= 0.3 <= found.high
    assert 180 <= held <= 200


def test_both_ways_of_drawing_agree():
    values = np.random.default_rng(0).integers(0, 3, 500).astype(float)
    few = bootstrap(values)
    many = bootstrap(values + 1e-9 * np.arange(500))  # all distinct: drawn one by one
    assert few.value == pytest.approx(many.value, abs=1e-6)
    assert (few.low, few.high) == pytest.approx((many.low, many.high), abs=0.01)


def test_bootstrap_is_paired():
    """Both models are wrong on the same half: the difference is certain all the same."""
    hits = np.arange(1000) % 2 == 0
    other = hits.copy()
    other[:10] = False
    found = make_metric("m", [hits, other], "user")
    assert found.drops == (0.0, pytest.approx(0.005))
    assert 0 < found.intervals[1].low < found.intervals[1].high < 0.012


def test_lower_is_better_turns_the_drop():
    worse = make_metric("loss", [np.array(1.0), np.array(1.5)], "user", higher_is_better=False)
    assert worse.drops[1] == 0.5
    assert worse.intervals == (None, None)


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    monkeypatch.setattr(user_metrics_module, "FileFunction", lambda file, *_: file)
    return [tmp_path / "float.onnx", tmp_path / "int8.onnx"]


def test_several_metrics_at_once(no_files):
    found = user_metrics(
        lambda model: {"loss": 1.0 + (model.name == "int8.onnx"), "each": np.arange(4.0)},
        no_files,
        "m:f",
        ["loss"],
    )
    assert [(m.name, m.values) for m in found] == [("loss", (1.0, 2.0)), ("each", (1.5, 1.5))]
    assert [m.drops[1] for m in found] == [1.0, 0.0]
    assert [m.intervals[1] is None for m in found] == [True, False]


def one_number(model):
    return 0.5


def test_a_number_is_named_after_its_function(no_files):
    assert user_metrics(one_number, no_files, "m:f")[0].name == "one_number"


def fails(model):
    raise RuntimeError("no\nGPU")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (fails, r"m:f failed on float.onnx: RuntimeError: no GPU"),
        (lambda m: float("nan"), "is NaN"),
        (lambda m: {"a": float("inf")}, "'a' is infinite"),
        (lambda m: {"a": "high"}, "'a' is a str, not a number"),
        (lambda m: None, "is None; return a number"),
        (lambda m: object(), "is a object, not a number"),
        (lambda m: {}, "empty dict"),
        (lambda m: np.zeros((2, 2)), r"has shape \[2, 2\]"),
        (lambda m: {m.name: 1.0}, "does not return 'float.onnx' for every model"),
    ],
)
def test_useless_answers(no_files, function, says):
    with pytest.raises(DataError, match=says):
        user_metrics(function, no_files, "m:f")


def test_unknown_name_to_minimize(no_files):
    with pytest.raises(DataError, match="no metric 'loss'; it returns one_number"):
        user_metrics(one_number, no_files, "m:f", ["loss"])


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (450, 450, 0.025 ** (1 / 450), 1.0),
        (0, 10, 0.0, 1 - 0.025 ** (1 / 10)),
        (97, 100, 0.91482, 0.99377),  # R: binom.test(97, 100)
        (1, 1, 0.025, 1.0),
    ],
)
def test_interval_of_a_share_is_exact(hits, total, low, high):
    assert exact_share_interval(hits, total) == pytest.approx((low, high), abs=1e-5)


def test_no_changed_sample_leaves_an_interval():
    z = 3.8415  # the 95 % quantile of chi-squared
    interval = paired_interval(np.zeros(450))
    assert interval.value == 0
    assert interval.high == pytest.approx(z / (450 + z), abs=1e-5)
    assert interval.low == -interval.high


def test_interval_of_hits_and_misses_covers_the_difference():
    draw = np.random.default_rng(0)
    lost, gained, samples = 0.03, 0.01, 300
    draws = draw.choice([1.0, -1.0, 0.0], (400, samples), p=[lost, gained, 1 - lost - gained])
    intervals = [paired_interval(d) for d in draws]
    covered = np.mean([i.low <= lost - gained <= i.high for i in intervals])
    assert 0.93 <= covered <= 0.98


def test_no_confidence_is_the_estimate():
    interval = paired_interval(np.array([1.0, 0.0, -1.0, 1.0]), 0.0)
    assert (interval.low, interval.high) == (interval.value, interval.value) == (0.25, 0.25)


def test_a_change_is_that_of_the_value():
    rows = [np.array([0.5, 0.7, 0.9]), np.array([0.6, 0.7, 1.1])]
    loss = make_metric("loss", rows, "user", higher_is_better=False)
    assert loss.change(loss.drops[1]) == "+0.1"
    assert loss.change(0.0) == "unchanged"
    low, high = (float(end) for end in loss.change_interval(1).split(" to "))
    assert 0 <= low <= 0.1 <= high
    score = make_metric("score", rows, "user")
    assert score.change(score.drops[1]) == "+0.1"
    hits = make_metric("top-1", [[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]], "user", percent=True)
    assert hits.change(hits.drops[1]) == "-25.00 points"
    assert hits.change_interval(1).endswith(" points")
