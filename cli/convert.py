"""qtool convert"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import FileOptions, QuantizeOptions


@click.command("convert", cls=Command)
@source_options.apply(
    source_options.model,
    record("loading", ModelOptions, MODEL),
    click.option(
        "--calibration",
        type=source_options.Path_,
        help="File written by `qtool calibrate`; not needed with --scales, but no step recovers "
        "accuracy without it.",
    ),
    click.option(
        "--scales",
        type=source_options.Path_,
        help="Take the scales of this file of another tool: a QDQ .onnx file made of MODEL, which "
        "is a float .onnx file then, or .encodings of AIMET.",
    ),
    options.output,
    record("how", QuantizeOptions, "target recipe mode accuracy recover ignore dynamic"),
    record("written", FileOptions),
    options.json_,
)
def command(
    model: str,
    loading: ModelOptions,
    calibration: Path | None,
    scales: Path | None,
    output_: Path,
    how: QuantizeOptions,
    written: FileOptions,
) -> None:
    """Write the verified int8 ONNX model of a calibrated MODEL.

    \b
    Example:
      qtool convert examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --calibration digits.calib -o digits.int8.onnx
    """
    import qtool
    from qtool.api.file_target import FileTarget, write_next_to
    from qtool.api.quantized_file import write_file

    place = FileTarget.check(output_, model, written, loading.weights, calibration, scales)
    calibrated = None if calibration is None else qtool.Calibration.load(calibration)
    if calibrated is None and scales is None:
        raise click.UsageError("give --calibration, --scales or both")
    keywords = how.keywords("observer")
    if calibrated is None:
        keywords["target"] = place.target_for(how.target)
    else:  # the file has the target of the calibration
        calibrated.check_target(place.target_for(keywords.pop("target"), calibrated.target))
    loaded = sources.load_model(model, loading)
    writer = place.writer({"": loaded})
    quantized = qtool.convert(loaded, calibrated, scales=scales, **keywords)
    path = place.path if writer is None else writer.path("", quantized.plan)
    file = write_file(quantized, path, place.options)
    if writer is None:
        file = replace(file, kept=write_next_to(model, loaded, path))
    else:
        file = writer.add(file)
    output.show_file(file, model)
