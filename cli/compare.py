"""qtool compare"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads

from qtool.evaluation.options import ReportOptions


@click.command("compare", cls=Command)
@click.argument("files", nargs=-1, required=True, type=source_options.ModelFile)
@source_options.apply(
    source_options.data,
    reads("classes", files="files"),
    options.report_folder(False),
    click.option(
        "--reference",
        type=source_options.ModelFile,
        help="The file of FILES to compare with; by default the first.",
    ),
    options.labels,
    options.measured("lower_is_better batch_sizes threads seconds"),
    options.fail_on,
    options.other_model,
    options.json_,
)
def command(
    files: tuple[Path, ...],
    reading: Reading,
    output_: Path | None,
    reference: Path | None,
    measured: ReportOptions,
    fail_on: str | None,
    other_model: bool,
) -> None:
    """Compare the accuracy, speed and size of FILES, ONNX or TFLite, from qtool or any other tool.

    \b
    Example:
      qtool compare float.onnx digits.int8.onnx other-tool.onnx \\
          --data examples/digits/eval.npz --labels labels -o compared
    """
    import qtool

    batches, classes = sources.load_labelled(reading)
    report = qtool.compare(
        files,
        batches,
        output_,
        options.report_options(measured, classes),
        reference=reference,
        other_model=other_model,
        bars=output.stage,
    )
    output.show_report(report, output_)
    output.exit_if_missed(report, fail_on)
