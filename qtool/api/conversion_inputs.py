"""Inputs of a conversion: the captured model, its first batch, and synthetic data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from qtool import observers
from qtool.calibration.calibration import Calibration
from qtool.calibration.data_free import SyntheticData, synthesize_data
from qtool.core.data import batches
from qtool.core.data.subset import first_samples
from qtool.core.errors import DataError
from qtool.core.graph import Input
from qtool.core.types import UINT8
from qtool.distributed import current
from qtool.distributed.first_batch import broadcast_first_batch
from qtool.frontends.captured_model import Captured, DynamicSizes, Model, capture_model
from qtool.frontends.onnx import OnnxModule

BLANK_SAMPLES = 2  # of a batch that is only used for its sizes


def capture_data(
    model: Model | Captured,
    data: Iterable[Any] | None,
    dynamic: DynamicSizes | None,
    samples: int | None = None,
) -> tuple[Captured, Any, Iterable[Any]]:
    """Capture the model; return it, the first batch and all data, distilled if there is none.

    Args:
        model, data, dynamic, samples: as for `calibrate`.
    """
    if data is not None:
        first, data = _peek_first_batch(data, model, samples)
        captured = capture_model(model, first, dynamic)
        captured.check_outputs()
        return captured, first, data
    if isinstance(model, nn.Module) and not isinstance(model, OnnxModule):
        raise DataError(
            "there is no data, and the sizes of the model's inputs are not known; give "
            "qtool.capture_model(model, batch) with any batch of those sizes, or --shape"
        )
    example = model.zero_batch(BLANK_SAMPLES) if isinstance(model, OnnxModule) else None
    captured = capture_model(model, example, dynamic)
    synthetic, ranks = synthesize_data(captured.unfolded or captured.graph), current()
    own = SyntheticData(synthetic.batches[ranks.rank :: ranks.size], synthetic.notes)
    return captured, synthetic.batches[0], own


def capture_notes(
    captured: Captured, model: Model | Captured, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[str, ...]:
    """Return notes on input sizes (ranges only if they were not chosen) and on distilled data."""
    module = isinstance(model, nn.Module) and not isinstance(model, OnnxModule)
    chosen = dynamic is not None or not module
    sizes = captured.graph.size_conditions if chosen else captured.graph.restrictions()
    synthetic = data.notes if isinstance(data, SyntheticData) else ()
    return (*captured.notes, *sizes, *synthetic)


def _peek_first_batch(
    data: Iterable[Any], model: Model | Captured, samples: int | None
) -> tuple[Any, Iterable[Any]]:
    """Return the first batch of all ranks, and this rank's data from its start; data may be a
    one-shot iterator."""
    module = model if isinstance(model, nn.Module) else None
    if isinstance(model, Captured):
        module = model.graph.module
    stream = batches(first_samples(data, samples, module), module)
    own = next(stream, None)
    if own is not None:
        own.check_finite(0)
    first = broadcast_first_batch(current(), own)
    if first is None:
        raise DataError("the calibration data is empty; give at least one batch")
    return first, stream if own is None else itertools.chain([own], stream)


def dynamic_sizes(inputs: tuple[Input, ...]) -> DynamicSizes:
    """Return the dynamic dimensions of captured inputs."""
    return {
        i.name: {axis: size for axis, size in enumerate(i.shape) if isinstance(size, str)}
        for i in inputs
    }


def random_inputs(calibration: Calibration) -> dict[str, torch.Tensor]:
    """Return reproducible inputs in the calibrated ranges; a dynamic dimension has size 4."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, torch.Tensor] = {}
    for each in calibration.inputs:
        shape = [4 if isinstance(s, str) else s for s in each.shape]
        dtype = getattr(torch, each.dtype)
        low, high = 0.0, 1.0
        if (statistic := calibration.statistics.get(each.name)) is not None:
            bounds = observers.range_of(calibration.specs[each.name], statistic, UINT8, False)
            low, high = (float(b) for b in bounds)
        values = torch.rand(shape, generator=generator) * (high - low) + low
        inputs[each.name] = values.to(dtype)
    return inputs
