"""qtool inspect"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources


@click.command("inspect")
@click.argument("file", type=sources.Path_)
@sources.apply(options.json_)
def command(file: Path, as_json: bool) -> None:
    """Show what FILE holds.

    Of an ONNX file: every operator, the kernel that ONNX Runtime runs for it, its MACs and its
    quantization parameters. Of a calibration: every tensor and its range.

    \b
    Example:
      qtool inspect digits.int8.onnx
    """
    import qtool

    with output.status("reading"):
        found = qtool.inspect(file)
    output.show(found, as_json)
