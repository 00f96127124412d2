"""qtool convert"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import FileOptions, QuantizeOptions

if TYPE_CHECKING:
    from qtool.api.quantized_file import QuantizedFile


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
    as_json: bool,
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
    show_file(file, as_json, model)
    exit_if_missed(file)


def show_file(file: QuantizedFile, as_json: bool, source: str) -> None:
    """Print what was measured on a file that was written.

    Args:
        source: value of MODEL, for the names of files that stayed.
    """
    sources.report_kept(file.kept, source)
    if as_json:
        from qtool.cli.documents import ModelFile, Outcome

        result = file.verification
        notes = (*file.notes, *result.notes)
        outcome = Outcome(file.passed and result.passed)
        output.show_json(ModelFile.of(file), replace(result, notes=notes), outcome)
    else:
        output.show_summary(file.summary(), file.details())
    for sentence in file.warnings:
        output.warn(sentence)


def exit_if_missed(file: QuantizedFile) -> None:
    """Exit with 1 if a file misses a goal."""
    if not file.passed:
        raise SystemExit(1)
