"""What the inputs of a gate say: their range in the quantized file, and equal samples."""

import numpy as np
import pytest

from qtool.evaluation.gate.data_checks import DataChecks

X = np.random.default_rng(0).uniform(-2, 2, (600, 16)).astype(np.float32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x, ""),
        (lambda x: np.concatenate([x[:9], x]), ""),  # a few samples twice
        (lambda x: np.where(x > 1.9, 100, x), ""),  # outliers that calibration clipped
        (lambda x: 4 * x, "% of the values are outside of -2 to 2 of 'x'"),
        (lambda x: x / 255, "the values, -0.00784 to 0.00784, are a small part of -2 to 2"),
        (lambda x: np.repeat(x[:100], 3, 0), "only 100 of 300 samples are distinct"),
        (lambda x: np.where(np.arange(600)[:, None] < 560, x, 0), "samples 560 to 599 of 600"),
    ],
)
def test_texts(change, text: str) -> None:
    checks = DataChecks(["x", "mask"], {"x": (-2.0, 2.0)})
    for batch in np.array_split(change(X), 7):
        checks.add([batch, np.ones((len(batch), 3), np.int64)])
    assert text in "; ".join(check.text for check in checks.checks())
    assert bool(text) == bool(checks.checks())


def test_an_input_without_a_range_is_not_judged() -> None:
    checks = DataChecks(["x"], {})
    checks.add([1000 * X])
    assert checks.checks() == []
