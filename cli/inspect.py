"""qtool inspect"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command


@click.command("inspect", cls=Command)
@click.argument("file", type=source_options.ModelFile)
@source_options.apply(
    click.option(
        "--provenance",
        is_flag=True,
        help="Show what made a model file: versions, model, weights, data, recipe and steps.",
    ),
    options.json_,
)
def command(file: Path, provenance: bool) -> None:
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

    with output.track_task("reading"):
        contents = made.provenance(file) if provenance else qtool.inspect(file)
    output.show(contents)
