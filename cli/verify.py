"""qtool verify"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output


@click.command("verify")
@click.argument("int8_file", type=options.Path_)
@options.apply(
    click.option("--data", help="As for `qtool quantize`; by default random inputs are made."),
    options.batch_size,
    click.option(
        "--samples", default=256, show_default=True, type=click.IntRange(1), help="Random inputs."
    ),
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
    from qtool.verification import compare_codes
    from qtool.verification.inputs import data_inputs, random_inputs

    if data is None:
        batches = random_inputs(int8_file, samples, batch_size)
        total: int | None = -(-samples // batch_size)
    else:
        source = options.load_data(data, batch_size)
        batches, total = data_inputs(int8_file, source), output.length_of(source)
    found = compare_codes(int8_file, output.progress("comparing", total)(batches))
    if as_json:
        output.show_json(found.to_json())
    else:
        output.say(str(found))
    if not found.exact:
        raise SystemExit(1)
