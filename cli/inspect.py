"""qtool inspect"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command

IN_TOTO, CYCLONEDX = "in-toto", "cyclonedx"


@click.command("inspect", cls=Command)
@click.argument("file", type=source_options.ModelFile)
@source_options.apply(
    click.option(
        "--provenance",
        is_flag=True,
        help="Show what made a model file: versions, model, weights, data, recipe and steps.",
    ),
    click.option(
        "--format",
        "document",
        type=click.Choice((IN_TOTO, CYCLONEDX)),
        help="Print the provenance as JSON of a standard: an in-toto statement with SLSA "
        "provenance, or a CycloneDX bill of materials (ML-BOM).",
    ),
    click.option(
        "--report",
        type=source_options.Path_,
        metavar="FILE",
        help="The report.json of a report on FILE, for the performance metrics of --format "
        "cyclonedx.",
    ),
    options.json_,
)
def command(
    file: Path, provenance: bool, document: str | None, report: Path | None, as_json: bool
) -> None:
    """Show the contents of FILE, an ONNX or TFLite file, or a calibration.

    For a model: every operator, the kernel that the runtime runs for it, its MACs and its
    quantization parameters. With --provenance: what made the file. For a calibration: every tensor
    and its range.

    \b
    Example:
      qtool inspect digits.int8.onnx
    """
    import qtool
    from qtool.evaluation.measure import provenance as made

    if report is not None and document != CYCLONEDX:
        raise click.BadParameter(
            f"it is for --format {CYCLONEDX}; leave it out", param_hint="--report"
        )
    if document is not None:
        if as_json:
            raise click.BadParameter(
                "--format prints JSON of its own; leave it out", param_hint="--json"
            )
        with output.status("reading"):
            text = json.dumps(_document(file, document, report), indent=2, allow_nan=False)
        click.echo(text)
        return
    with output.status("reading"):
        contents = made.provenance(file) if provenance else qtool.inspect(file)
    output.show(contents, as_json)


def _document(file: Path, document: str, report: Path | None) -> dict[str, Any]:
    from qtool.evaluation.cyclonedx import cyclonedx_document
    from qtool.evaluation.in_toto import in_toto_statement
    from qtool.evaluation.report.report import Report

    if document == IN_TOTO:
        return in_toto_statement(file)
    return cyclonedx_document(file, None if report is None else Report.read(report))
