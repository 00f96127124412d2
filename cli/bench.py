"""qtool bench"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources
from qtool.cli.number_types import DAY, Real


@click.command("bench")
@click.argument("files", nargs=-1, required=True, type=sources.Path_)
@sources.apply(
    sources.data_or_random,
    options.batch_sizes,
    options.threads,
    click.option(
        "--seconds",
        default=10.0,
        show_default=True,
        type=Real(min=0, max=DAY, min_open=True),
        help="At most, for each batch size and number of threads.",
    ),
    click.option(
        "--precision",
        default=0.01,
        show_default=True,
        type=Real(0, 1, min_open=True),
        help="Stop when every ratio's 95 % interval is within this of its median.",
    ),
    options.json_,
)
def command(
    files: tuple[Path, ...],
    data: str | None,
    batch_sizes: tuple[int, ...],
    threads: tuple[int, ...],
    seconds: float,
    precision: float,
    as_json: bool,
) -> None:
    """Time ONNX FILES in turns in one process; ratios are of the first to each.

    Every figure comes with its spread. Exits with 1 if the time was up before the ratios were as
    narrow as --precision asks.

    \b
    Example:
      qtool bench float.onnx digits.int8.onnx --batch-sizes 1,32 --precision 0.02
    """
    import qtool

    found = qtool.bench(
        files,
        None if data is None else sources.load_data(data, max(batch_sizes)),
        batch_sizes=batch_sizes,
        threads=threads,
        seconds=seconds,
        precision=precision,
        bars=output.progress,
    )
    output.show(found, as_json)
    if not found.precise:
        click.echo(
            f"a ratio is not known to {precision:g}; give more --seconds or a quieter machine",
            err=True,
        )
        raise SystemExit(1)
