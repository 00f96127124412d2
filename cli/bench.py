"""qtool bench"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output
from qtool.cli import report as shared


@click.command("bench")
@click.argument("files", nargs=-1, required=True, type=options.Path_)
@options.apply(
    click.option("--data", help="As for `qtool quantize`; by default random inputs are made."),
    shared.batch_sizes,
    shared.threads,
    click.option(
        "--seconds",
        default=10.0,
        show_default=True,
        type=click.FloatRange(min=0, min_open=True),
        help="At most, for each batch size and number of threads.",
    ),
    click.option(
        "--precision",
        default=0.01,
        show_default=True,
        type=click.FloatRange(0, 1, min_open=True),
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
    from qtool.analysis.latency import timed
    from qtool.analysis.machine import machine
    from qtool.analysis.restore import read_onnx
    from qtool.errors import DataError
    from qtool.records import to_json
    from qtool.verification.inputs import check_same_inputs, resized

    for file in files:
        read_onnx(file)
    check_same_inputs(files)
    batch = _inputs(files[0], data, max(batch_sizes))
    found = []
    for size, count in [(b, t) for t in threads for b in batch_sizes]:
        inputs = resized(files[0], batch, size)
        if inputs is None:
            raise DataError(
                f"{files[0].name} takes one batch size, which is not {size}; see --batch-sizes"
            )
        with output.status(f"batch {size}, {count} threads"):
            found.append(timed(files, inputs, threads=count, seconds=seconds, precision=precision))
    noisy = len(files) > 1 and any(r.width > precision for t in found for r in t.ratios)
    if as_json:
        shown = {"files": [str(f) for f in files], "machine": to_json(machine())}
        output.show_json(shown | {"timings": to_json(found), "precise": not noisy})
    else:
        _table(files, found)
    if noisy:
        click.echo(
            f"a ratio is not known to {precision:g}; give more --seconds or a quieter machine",
            err=True,
        )
        raise SystemExit(1)


def _inputs(file: Path, data: str | None, size: int) -> list[Any]:
    from qtool.errors import DataError
    from qtool.verification.inputs import Feeder, random_inputs

    if data is None:
        return next(random_inputs(file, size, size))
    first = next(iter(options.load_data(data, size)), None)
    if first is None:
        raise DataError("the data is empty; give at least one batch")
    return Feeder(file).arrays(first, 0)


def _table(files: tuple[Path, ...], found: list[Any]) -> None:
    rows = []
    for timing in found:
        for i, (file, spread) in enumerate(zip(files, timing.models, strict=True)):
            ratio = timing.ratios[i]
            rows.append(
                (
                    file.name,
                    str(timing.batch),
                    str(timing.threads),
                    f"{spread.median:.3f} ms",
                    f"{spread.low:.3f} to {spread.high:.3f}",
                    f"{ratio.median:.3f}x" if i else "",
                    f"{ratio.low:.3f} to {ratio.high:.3f}" if i else "",
                    str(timing.rounds),
                )
            )
    columns = (
        "file",
        "batch",
        "thr.",
        "median",
        "80 % of runs",
        "ratio",
        "95 % interval",
        "rounds",
    )
    output.table(None, columns, rows)
