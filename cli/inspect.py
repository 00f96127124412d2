"""qtool inspect"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources
from qtool.cli.command import Command


@click.command("inspect", cls=Command)
@click.argument("file", type=sources.Path_)
@sources.apply(options.json_)
def command(file: Path, as_json: bool) -> None:
    """Show the contents of FILE, an ONNX file or a calibration.

    For an ONNX file: every operator, the kernel that ONNX Runtime runs for it, its MACs and its
    quantization parameters. For a calibration: every tensor and its range.

    \b
    Example:
      qtool inspect digits.int8.onnx
    """
    import qtool

    with output.status("reading"):
        contents = qtool.inspect(file)
    output.show(contents, as_json)
