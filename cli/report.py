"""qtool report"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.labels import load_labels
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import QuantizeOptions
from qtool.evaluation.options import Goals, ReportOptions

_CONVERSION = "observer target recipe mode accuracy recover ignore"


@click.command("report", cls=Command)
@click.argument("source", metavar="MODEL|FILE|JSON")
@source_options.apply(
    record("loading", ModelOptions, MODEL),
    source_options.data_unless("a stored report"),
    reads("classes", sources="data calibration_data"),
    options.report_folder(True, "Folder for the report."),
    click.option(
        "--model",
        callback=source_options.from_cache,
        help="Float model of FILE, in a form of MODEL or as a file.",
    ),
    options.other_model,
    click.option(
        "--calibration",
        type=source_options.Path_,
        help="With MODEL: a file written by `qtool calibrate`.",
    ),
    click.option("--calibration-data", help="With MODEL: calibration data; by default --data."),
    options.labels,
    options.eval_,
    record("measured", ReportOptions),
    record("how", QuantizeOptions, f"{_CONVERSION} dynamic"),
    record("goals", Goals),
    options.fail_on,
    options.json_,
)
def command(
    source: str,
    loading: ModelOptions,
    data: str | None,
    reading: Reading,
    output_: Path,
    model: str | None,
    calibration: Path | None,
    calibration_data: str | None,
    labels: str | None,
    evaluate: str | None,
    measured: ReportOptions,
    how: QuantizeOptions,
    goals: Goals,
    other_model: bool,
    fail_on: str | None,
    as_json: bool,
) -> None:
    """Write a report on whether to ship the int8 form of MODEL, or FILE.

    FILE is an .onnx or a .tflite file. Writes report.html, report.md and report.json. A MODEL
    (package.module:factory or .pt2) is calibrated and converted first, and its int8 file is written
    too. JSON is the report.json of a report, or what report or compare printed with --json: its
    pages are written again.

    \b
    Example:
      qtool report digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --data examples/digits/eval.npz --labels labels -o digits-report
    """
    import qtool

    if output_.suffix.lower() in (".html", ".md", ".json"):
        raise click.BadParameter(
            f"{output_} is the name of a file; the report is a folder: name it "
            f"{output_.with_suffix('')}",
            param_hint="--output",
        )
    if Path(source).suffix.lower() == ".json":
        _write_again(Path(source), output_, as_json, fail_on)
        return
    if data is None:
        raise click.MissingParameter(param_hint="--data", param_type="option")
    subject, reading = sources.file_or_model(source, loading, reading)
    file = subject if isinstance(subject, Path) else None
    if file is not None and model is None and loading.fixed:
        raise click.BadParameter(
            "it is for a MODEL or the float --model; leave it out", param_hint="--fix"
        )
    if file is None and not _is_written("model"):
        model = None  # a configuration has it for commands that read files
    reference = None
    if model is not None:
        reference, reading = sources.file_or_model(model, loading, reading, file)
    batches = sources.load_data(reading, data, labels)
    classes = load_labels(reading, labels, data, batches)
    calibrated_on = None
    if calibration_data:
        calibrated_on = sources.load_data(reading, calibration_data, whole=True)
    report = qtool.report(
        subject,
        batches,
        output_,
        options.report_options(measured, goals, evaluate, classes),
        model=reference,
        calibration=calibration,
        calibration_data=calibrated_on,
        other_model=other_model,
        bars=output.stage,
        dynamic=sources.with_dynamic(how, batches).dynamic,
        **_conversion(how, file),
    )
    output.show_report(report, as_json, output_)
    output.exit_if_missed(report, fail_on)


def _conversion(how: QuantizeOptions, file: Path | None) -> dict[str, Any]:
    """Return the options of a conversion; next to a file those of the command line, to be refused:
    a configuration has options of several commands."""
    names = _CONVERSION.split()
    return {name: getattr(how, name) for name in names if file is None or _is_written(name)}


def _is_written(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


_PAGES = {"source", "output_", "as_json", "fail_on"}


def _write_again(stored: Path, folder: Path, as_json: bool, fail_on: str | None) -> None:
    """Write the pages of a stored report; nothing is measured."""
    from qtool.evaluation.report.page.write import write_report
    from qtool.evaluation.report.report import Report

    context = click.get_current_context()
    for parameter in context.command.params:
        origin = context.get_parameter_source(parameter.name or "")
        if origin is ParameterSource.COMMANDLINE and parameter.name not in _PAGES:
            raise click.BadParameter(
                f"{stored} is a stored report, of which nothing is measured: leave it out",
                param_hint=parameter.opts[0],
            )
    report = write_report(folder, Report.read(stored))
    output.show_report(report, as_json, folder)
    output.exit_if_missed(report, fail_on)
