"""Errors of outputs by sample: medians, their intervals, and samples that decide the sum."""

from dataclasses import replace

import numpy as np
import pytest

from qtool.metrics.output_errors import OutputErrors
from qtool.verification.estimate import CALIBRATION, ESTIMATE, InBatches, Reach, estimate_outputs

RNG = np.random.default_rng(0)


def errors(noise: np.ndarray, batch: int = 16) -> OutputErrors:
    real = np.ones((len(noise), 4), np.float32)
    parts = [
        OutputErrors.of(["y"], [a], [b], len(a))
        for coded in [real + noise[:, None].astype(np.float32)]
        for i in range(0, len(noise), batch)
        for a, b in [(real[i : i + batch], coded[i : i + batch])]
    ]
    return OutputErrors.joined(parts)


def test_figures_are_those_of_numpy() -> None:
    noise = 0.1 * RNG.lognormal(sigma=0.3, size=64)
    found = estimate_outputs(errors(noise), ESTIMATE)
    each = -20 * np.log10(np.abs(noise))
    assert found.samples == 64
    assert found.median_db == pytest.approx(np.median(each), abs=1e-3)
    assert found.worst_db == pytest.approx(each.min(), abs=1e-3)
    assert found.pooled_db == pytest.approx(-10 * np.log10(np.square(noise).mean()), abs=1e-3)
    assert found.interval_db[0] < found.median_db < found.interval_db[1]
    assert found.caution is None


def test_few_samples_that_decide_the_sum_are_named_with_what_is_extreme() -> None:
    noise = np.full(64, 0.01)
    noise[5] = 3.0
    origins = [f"batch {i // 16}, row {i % 16}" for i in range(64)]
    reasons = ["" if i != 5 else "input 'x' reaches 900, 3 in the median sample" for i in range(64)]
    found = estimate_outputs(errors(noise), ESTIMATE, origins, reasons)
    assert found.median_db == pytest.approx(40, abs=0.01)
    assert found.pooled_db < 10
    note = found.caution
    assert "1 sample of 64" in note
    assert "batch 0, row 5: input 'x' reaches 900" in note


def test_samples_without_noise_and_outputs_of_other_shapes() -> None:
    assert estimate_outputs(errors(np.zeros(16)), ESTIMATE).text is not None
    found = estimate_outputs(errors(np.zeros(16)), ESTIMATE)
    assert found.median_db is None
    assert found.text(found.outputs).startswith("no noise")
    boxes = OutputErrors.of(["boxes"], [np.ones((3, 4), np.float32)], [np.ones((2, 4))], 3)
    assert estimate_outputs(boxes, ESTIMATE).outputs == ()


def test_nan_of_the_quantized_model_is_no_signal_and_nan_of_the_float_model_left_out() -> None:
    real = np.ones((8, 2), np.float32)
    coded = real.copy()
    coded[0] = np.nan
    found = estimate_outputs(OutputErrors.of(["y"], [real], [coded], 8), ESTIMATE)
    assert found.worst_db == -200
    real[1, 0] = np.nan
    again = estimate_outputs(OutputErrors.of(["y"], [real], [coded], 8), ESTIMATE)
    assert again.median_db is None


def test_new_samples_beyond_the_ranges_are_a_caution() -> None:
    found = replace(
        estimate_outputs(errors(np.full(64, 0.01)), ESTIMATE), beyond=(Reach("h", 1.4),)
    )
    note = found.caution
    assert "few samples may decide" in note
    assert "of 1 tensor, 'h' by a factor of 1.40" in note


def test_missing_extremes_and_few_samples_are_a_caution() -> None:
    even = estimate_outputs(errors(np.full(64, 0.01)), ESTIMATE)
    assert even.caution is None
    short = replace(even, reach=1.8).caution
    assert "few samples may decide" in short
    assert "reach 1.8 times as far as those of 64 held-out samples" in short
    few = estimate_outputs(errors(np.full(12, 0.01), 12), ESTIMATE).caution
    assert "rare ones are not among 12 held-out samples" in few
    calibrated = estimate_outputs(errors(np.full(24, 0.01), 24), CALIBRATION).caution
    assert "none of 24 calibration samples was held out" in calibrated


def test_signal_in_few_samples_is_a_caution() -> None:
    loud = np.ones((64, 4), np.float32)
    loud[[3, 9, 20]] = 10  # 300 of 361 units of power
    estimate = estimate_outputs(OutputErrors.of(["y"], [loud], [loud + 0.01], 64), ESTIMATE)
    assert estimate.loud == pytest.approx(300 / 361, abs=1e-6)
    assert (
        "83.10 % of the signal is in the loudest 3 samples of 64 held-out samples"
        in estimate.caution
    )


@pytest.mark.parametrize(("decades", "said"), [(0.2, False), (1.0, True)])
def test_errors_that_differ_much_are_a_caution(decades: float, said: bool) -> None:
    """Where the pooled error of 64 samples is often far too small, it is said."""
    noise = 10 ** np.random.default_rng(0).normal(-4, decades, 64 * 300).reshape(-1, 64)
    signal = np.full((1, 64), 1e3)
    each = [estimate_outputs(OutputErrors(("y",), signal, n[None], 64), ESTIMATE) for n in noise]
    wrong = np.mean(noise.mean(1) < noise.mean() / 2)
    assert (wrong > 0.05) == said
    cautions = [e.caution or "" for e in each if not e.costly]
    share = np.mean(["rare ones weigh" in caution for caution in cautions])
    assert share == pytest.approx(float(said), abs=0.05)


def test_samples_of_a_batch_that_share_their_scales_are_shown_one_by_one() -> None:
    found = replace(
        estimate_outputs(errors(np.full(64, 0.01)), ESTIMATE), batch=1, in_batches=InBatches(32, 33)
    )
    text = found.text(found.outputs)
    assert "(median of 64 held-out samples one by one, 95 % interval " in text
    assert text.endswith("; in batches of 32 33.0 dB)")


def test_outputs_without_a_row_per_sample_have_no_interval() -> None:
    """Of [time, samples, classes] one error of a batch is known, which has no interval."""
    rng = np.random.default_rng(4)
    real = [rng.standard_normal((7, 16, 3)).astype(np.float32) for _ in range(2)]
    coded = [a + rng.normal(0, 0.1, a.shape).astype(np.float32) for a in real]
    parts = [OutputErrors.of(["y"], [a], [b], 16) for a, b in zip(real, coded, strict=True)]
    found = estimate_outputs(OutputErrors.joined(parts), ESTIMATE)
    pairs = zip(real, coded, strict=True)
    exact = [10 * np.log10(np.square(a).sum() / np.square(a - b).sum()) for a, b in pairs]
    assert found.median_db == pytest.approx(np.median(exact), abs=1e-3)
    assert found.worst_db == pytest.approx(min(exact), abs=1e-3)
    assert found.interval_db == (None, None)
    one_batch = estimate_outputs(parts[0], ESTIMATE).caution or ""
    assert "loudest" not in one_batch  # of samples nothing is known
    assert (
        found.text(found.outputs)
        == f"{np.median(exact):.1f} dB (32 held-out samples, batch by batch)"
    )
