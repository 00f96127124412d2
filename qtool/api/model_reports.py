"""Reports on models of torch, which are quantized first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtool.api.conversion import convert, quantize
from qtool.api.conversion_inputs import data_module
from qtool.api.quantized_model import QuantizedModel
from qtool.calibration.calibration import Calibration
from qtool.core.conversion_options import QuantizeOptions
from qtool.core.data import peek
from qtool.core.frame_columns import split_labels
from qtool.core.progress import Bars
from qtool.distributed import DataShard, current, use_process_group
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.frontends.captured_model import Captured, Model, capture_model


def report_model(
    source: QuantizedModel | Model | Captured,
    data: Iterable[Any],
    folder: Path,
    options: ReportOptions,
    how: QuantizeOptions,
    *,
    calibration: Calibration | str | Path | None,
    calibration_data: Iterable[Any] | None,
    bars: Bars,
) -> Report:
    """Quantize a model, unless it is quantized, and write the report; see `qtool.report`."""
    ranks = current()
    data, labels = split_labels(data, options.labels)
    options = replace(options, labels=labels)
    if calibration is not None or isinstance(source, QuantizedModel):
        ranks.continue_on_rank_zero()  # no work to share
    if isinstance(source, QuantizedModel):
        return source.report(data, folder, options, bars=bars)
    own = calibration is None and calibration_data is None
    if own and iter(data) is data:
        data = list(data)  # read twice
    first, stream = peek(
        data if calibration_data is None else calibration_data, data_module(source)
    )
    captured = capture_model(source, first, how.dynamic)
    keywords = how.keywords("dynamic", "observer")
    if calibration is not None:
        quantized = convert(captured, calibration, sample=first, **keywords)
        name = "a calibration" if isinstance(calibration, Calibration) else Path(calibration).name
        origin = f"converted by qtool with {name}"
    else:
        with use_process_group(... if ranks.is_distributed else None):  # every rank has all data
            quantized = quantize(
                captured,
                DataShard(stream, ranks.rank, ranks.size) if ranks.is_distributed else stream,
                observer=how.observer,
                progress=bars("calibrating", None),
                **keywords,
            )
        origin = "quantized by qtool"
        origin += ", calibrated on the evaluation data itself" if own else ""
    return quantized.report(data, folder, options, origin=origin, bars=bars)
