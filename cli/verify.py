"""qtool verify"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources
from qtool.cli.numbers import COUNT


@click.command("verify")
@click.argument("int8_file", type=sources.Path_)
@sources.apply(
    sources.data_or_random,
    sources.batch_size,
    click.option("--samples", default=256, show_default=True, type=COUNT, help="Random inputs."),
    options.json_,
)
def command(
    int8_file: Path, data: str | None, batch_size: int, samples: int, as_json: bool
) -> None:
    """Run INT8_FILE in qtool's integer engine and in ONNX Runtime, and compare every bit.

    The file may come from any tool that writes QDQ models. Exits with 1 if an output differs.

    \b
    Example:
      qtool verify digits.int8.onnx --data calib_data/digits
    """
    import qtool

    batches = None if data is None else sources.load_data(data, batch_size)
    total = -(-samples // batch_size) if batches is None else output.length_of(batches)
    found = qtool.verify(
        int8_file,
        batches,
        samples=samples,
        batch_size=batch_size,
        progress=output.progress("comparing", total),
    )
    output.show(found, as_json)
    if not found.exact:
        raise SystemExit(1)
