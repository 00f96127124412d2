"""qtool calibrate"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from qtool.cli import options, output, source_options, sources, value_types
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import QuantizeOptions

if TYPE_CHECKING:
    from qtool import Calibration


_OBSERVED = "observer target recipe mode accuracy recover ignore dynamic"


@click.command("calibrate", cls=Command)
@source_options.apply(
    source_options.model,
    record("loading", ModelOptions, MODEL),
    source_options.data_or_none(required=True),
    reads(),
    options.calibration_output,
    click.option(
        "--format",
        "format_",
        type=value_types.FORMAT,
        help="Format of the file to convert to: what that cannot hold is refused now. By default "
        "that of the target's own runtime: tflite for TFLite, else qdq.",
    ),
    record("how", QuantizeOptions, _OBSERVED),
    options.json_,
)
def command(
    model: str,
    loading: ModelOptions,
    reading: Reading,
    output_: Path,
    format_: str | None,
    how: QuantizeOptions,
) -> None:
    """Run MODEL on calibration data and write the statistics of its tensors.

    MODEL is package.module:factory (with --weights), a .pt2 or a float .onnx file, a transformers
    or timm model folder, or the hub id of one in the local cache (org/model).

    \b
    Example:
      qtool calibrate examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data calib_data/digits -o digits.calib
    """
    import qtool
    from qtool.backends.formats import own_format
    from qtool.core.atomic import check_writable
    from qtool.core.option_names import MODEL_FORMATS
    from qtool.distributed import current
    from qtool.planning import targets
    from qtool.planning.targets import DEFAULT, target_for

    if output_.suffix in MODEL_FORMATS:
        named = output_.with_suffix(".calib")
        raise click.BadParameter(
            f"{output_} is the name of a model; name the calibration {named}, or use "
            "`qtool quantize`",
            param_hint="--output",
        )
    check_writable(output_, model, loading.weights, reading.sources.data)
    kind = format_ or own_format(targets.target(how.target or DEFAULT))
    how = replace(how, target=target_for(kind, how.target))
    sources.check_data(reading)
    reading = reading.of(model, sources.load_model(model, loading))
    loaded, batches = sources.load_inputs(reading)
    share = None if batches is None else sources.share_of(batches)
    how = sources.with_dynamic(how, batches)
    progress = output.stage("calibrating", output.length_of(share))
    calibration = qtool.calibrate(loaded, share, progress=progress, format=kind, **how.keywords())
    current().continue_on_rank_zero()
    calibration.save(output_)
    show_file(calibration, output_)


def show_file(calibration: Calibration, path: Path, merged: int = 0) -> None:
    """Print what a calibration file holds, and of how many it was merged."""
    samples, tensors = calibration.samples, len(calibration.statistics)
    if output.is_json():
        from qtool.cli.documents import CalibrationFile

        observer = str(calibration.observer)
        output.show_json(CalibrationFile(path, samples, tensors, observer, calibration.notes))
        return
    text = f"merged from {merged} calibrations" if merged else "calibration"
    output.show_summary(calibration.summary(str(path), text))
