"""qtool convert"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from qtool.cli import options, output, parsed_options, source_options, sources
from qtool.cli.command import Command

if TYPE_CHECKING:
    from qtool.api.quantized_file import QuantizedFile


@click.command("convert", cls=Command)
@source_options.apply(
    source_options.model,
    source_options.weights,
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
    options.target,
    options.format_,
    options.external_data,
    options.layout,
    options.interface,
    options.batch,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    options.ignore,
    source_options.dynamic,
    options.min_coverage,
    options.min_sqnr,
    options.timing,
    options.json_,
)
def command(
    model: str,
    weights: Path | None,
    calibration: Path | None,
    scales: Path | None,
    output_: Path,
    target: str | None,
    format_: str,
    external_data: bool,
    layout: str | None,
    interface: str | None,
    batch: str | None,
    recipe: Path | None,
    mode: str | None,
    accuracy: str | None,
    recover: str | None,
    ignore: tuple[str, ...],
    dynamic: tuple[str, ...],
    min_coverage: float | None,
    min_sqnr: float | None,
    timing: float,
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
    from qtool.api.file_target import FileTarget
    from qtool.api.model_folder import write_next_to
    from qtool.api.quantized_file import FileOptions, write_file
    from qtool.planning.targets import target_for

    written = FileOptions(
        format_, external_data, layout, interface, batch, timing, min_coverage, min_sqnr
    )
    place = FileTarget.check(output_, model, written, weights, calibration, scales)
    calibrated = None if calibration is None else qtool.Calibration.load(calibration)
    if calibrated is None and scales is None:
        raise click.UsageError("give --calibration, --scales or both")
    if calibrated is None:
        target = target_for(place.format, target)
    else:
        calibrated.check_target(target_for(place.format, target, calibrated.target))
    loaded = sources.load_model(model, weights)
    writer = place.writer({"": loaded})
    quantized = qtool.convert(
        loaded,
        calibrated,
        scales=scales,
        target=target if calibrated is None else None,
        recipe=recipe,
        mode=mode,
        accuracy=accuracy,
        recover=options.names(recover),
        ignore=ignore or None,
        dynamic=parsed_options.parse_dynamic(dynamic),
    )
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
