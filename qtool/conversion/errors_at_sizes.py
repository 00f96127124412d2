"""Errors of a file at other sizes than the sample's, on more samples than its check runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtool.backends.export import PlannedFile
from qtool.conversion.fidelity_measurement import EstimateSamples
from qtool.core.graph.other_sizes import LARGEST, resize
from qtool.metrics.compared_batches import ComparedBatches
from qtool.metrics.output_errors import OutputErrors
from qtool.simulation.fake_quantized import FakeQuantized
from qtool.simulation.output_evidence import padding_of
from qtool.verification.estimate import estimate_outputs
from qtool.verification.verification_result import SizeCheck

SAMPLES = 8
"""Samples of a size: single ones differ by 6 dB and more, and all cost a second estimate."""


def with_more_samples(
    model: FakeQuantized,
    checks: Sequence[SizeCheck],
    samples: EstimateSamples,
    file: PlannedFile,
) -> tuple[SizeCheck, ...]:
    """Return checks with the errors of samples for the estimate, cut or repeated to their sizes.

    A check stays as it is where these samples are fewer than its own, or too large.

    Args:
        model: the model that the file was written from.
        checks: results at sizes that the file takes.
        samples: those for the estimate.
        file: the file.
    """
    return tuple(_measured(model, check, samples, file) for check in checks)


def _measured(
    model: FakeQuantized, check: SizeCheck, samples: EstimateSamples, file: PlannedFile
) -> SizeCheck:
    padding, compared = padding_of(model.graph), ComparedBatches(model.graph.outputs, {}, 0)
    parts, room = list[OutputErrors](), LARGEST
    for batch in samples.batches:
        count = SAMPLES - sum(p.samples for p in parts)
        if check.wrong or not check.samples or count <= 0:
            break
        other = resize(model.graph, model.graph.smaller(batch, count), check.sizes)
        room -= sum(t.numel() for _, t in other.tensors())
        if room < 0:
            break
        inputs = other.arrays()
        sides = model.run_float(other), file.run(inputs)
        real, coded = (padding.strip(inputs, side) for side in sides)
        parts.append(compared.add(real, coded, other.size))
    if sum(p.samples for p in parts) <= check.samples:
        return check
    estimate = estimate_outputs(OutputErrors.joined(parts), samples.kind)
    return replace(check, sqnr_db=estimate.median_db, samples=estimate.samples)
