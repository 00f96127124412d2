"""qtool bench"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.value_types import Real

from qtool.core.limits import DAY
from qtool.evaluation.options import ReportOptions


@click.command("bench", cls=Command)
@click.pass_context
@click.argument("files", nargs=-1, required=True, type=source_options.ModelFile)
@source_options.apply(
    source_options.data_or_random,
    reads(files="files", sized=False),
    record("measured", ReportOptions, "batch_sizes threads"),
    options.runtime,
    click.option(
        "--seconds",
        default=10.0,
        show_default=True,
        type=Real(min=0, max=DAY, min_open=True),
        help="Time limit for each batch size and number of threads.",
    ),
    click.option(
        "--precision",
        default=0.01,
        show_default=True,
        type=Real(0, 1, min_open=True),
        help="Stop when the 95 % interval of every ratio is within this share of its median.",
    ),
    options.json_,
)
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    reading: Reading,
    measured: ReportOptions,
    runtime: str,
    seconds: float,
    precision: float,
) -> None:
    """Benchmark ONNX FILES in turns in one process; speed-ups are relative to the first file.

    Every number is printed with its spread. Without --batch-sizes, files that take one size are
    timed with that. Exits with 1 if --precision is given, and the time limit was reached before
    the ratios were that precise.

    \b
    Example:
      qtool bench float.onnx digits.int8.onnx --batch-sizes 1,32 --precision 0.02
    """
    import qtool

    reading = replace(reading, batch_size=max(measured.batch_sizes))
    default = ctx.get_parameter_source("batch_sizes") is ParameterSource.DEFAULT
    result = qtool.bench(
        files,
        sources.load_optional_data(reading),
        batch_sizes=None if default else measured.batch_sizes,
        threads=measured.threads,
        runtime=runtime,
        seconds=seconds,
        precision=precision,
        bars=output.stage,
    )
    output.show(result)
    if not result.precise:
        click.echo(
            f"a ratio did not reach --precision {precision:g}; increase --seconds or use a quieter "
            "machine",
            err=True,
        )
        if ctx.get_parameter_source("precision") is not ParameterSource.DEFAULT:
            raise SystemExit(1)
