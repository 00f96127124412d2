"""qtool report"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import QuantizeOptions
from qtool.evaluation.options import ReportOptions


@click.command("report", cls=Command)
@click.argument("source", metavar="FILE|JSON")
@source_options.apply(
    record("loading", ModelOptions, MODEL),
    source_options.data_unless("a stored report"),
    reads("classes"),
    options.report_folder(True),
    click.option(
        "--model",
        callback=source_options.from_cache,
        help="The float model of FILE, as for `qtool quantize`; required.",
    ),
    options.other_model,
    options.labels,
    options.measured(),
    record("how", QuantizeOptions, "dynamic"),
    options.fail_on,
    options.json_,
)
def command(
    source: str,
    loading: ModelOptions,
    reading: Reading,
    output_: Path,
    model: str | None,
    measured: ReportOptions,
    how: QuantizeOptions,
    other_model: bool,
    fail_on: str | None,
) -> None:
    """Write a report on whether to ship FILE.

    FILE is an .onnx or a .tflite file. Writes report.html, report.md and report.json. JSON is the
    report.json of a report, or what report or compare printed with --json: its pages are written
    again.

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
        _write_again(Path(source), output_, fail_on)
        return
    if reading.sources.data is None or model is None:
        missing = "--model" if model is None else "--data"
        raise click.MissingParameter(param_hint=missing, param_type="option")
    file = source_options.ModelFile.convert(source, None, click.get_current_context())
    reading = replace(reading, files=(file,))
    reference, reading = sources.file_or_model(model, loading, reading, file)
    batches, classes = sources.load_labelled(reading)
    report = qtool.report(
        file,
        batches,
        output_,
        options.report_options(measured, classes),
        model=reference,
        other_model=other_model,
        dynamic=sources.with_dynamic(how, batches).dynamic,
        bars=output.stage,
    )
    output.show_report(report, output_)
    output.exit_if_missed(report, fail_on)


_PAGES = {"source", "output_", "as_json", "fail_on"}


def _write_again(stored: Path, folder: Path, fail_on: str | None) -> None:
    """Write the pages of a stored report; nothing is measured."""
    from qtool.evaluation.report.page.render import write_report
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
    output.show_report(report, folder)
    output.exit_if_missed(report, fail_on)
