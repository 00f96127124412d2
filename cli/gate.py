"""qtool gate"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, Sources, reads
from qtool.cli.records import record

from qtool.core.option_records import option
from qtool.evaluation.options import GateOptions


@dataclass(frozen=True)
class GateFiles:
    """What a gate writes besides its result.

    Attributes:
        junit: write a JUnit report to FILE.
        badge: write the JSON of a badge (shields.io endpoint) to FILE.
        markdown: write a table for the summary of a CI job to FILE.
    """

    junit: Path | None = option(None, kind="path", metavar="FILE")
    badge: Path | None = option(None, kind="path", metavar="FILE")
    markdown: Path | None = option(None, kind="path", metavar="FILE")


@click.command("gate", cls=Command)
@click.argument("file", type=source_options.ModelFile)
@source_options.apply(
    click.option(
        "--against",
        required=True,
        type=source_options.ModelFile,
        metavar="FLOAT",
        help="The float file that FILE is compared with.",
    ),
    source_options.data_unless("a language model with its KV cache"),
    reads("classes", files="file against"),
    options.labels,
    record("chosen", GateOptions, "metric lower_is_better max_drop min_speedup seconds"),
    options.other_model,
    options.runtime,
    record("files", GateFiles),
    options.json_,
)
def command(
    file: Path,
    against: Path,
    reading: Reading,
    chosen: GateOptions,
    other_model: bool,
    runtime: str,
    files: GateFiles,
) -> None:
    """Decide whether FILE may take the place of the float file FLOAT, by paired intervals.

    Files are of any tool, and the samples those of --data. Exits with 0 if FILE is accepted, 1 if
    it is a regression, 3 if it is inconclusive, and the result says how many samples would decide,
    4 if it is not comparable: the numbers would mean nothing.

    \b
    Example:
      qtool gate digits.int8.onnx --against float.onnx --metric top-1 --max-drop 0.02 \\
          --data examples/digits/eval.npz --labels labels
    """
    import qtool
    from qtool.core.atomic import write_atomic
    from qtool.metrics.named_metrics import find_metric

    _remove_earlier(filter(None, vars(files).values()), file, against, *_read(reading.sources))
    metric: Any = chosen.metric
    if metric is not None and ":" in metric:
        metric = options.load_metrics(metric)
    elif metric is not None:
        find_metric(metric)
    chosen = replace(chosen, metric=metric, other_model=other_model, runtime=runtime)
    sources.check_data(reading)
    has_data = reading.sources.data is not None
    loaded = sources.load_labelled(reading) if has_data else (None, reading.sources.labels)
    result = qtool.gate(
        file,
        against,
        *loaded,
        processor=reading.options.folder,
        progress=output.stage("running", output.length_of(loaded[0])),
        **vars(chosen),
    )
    for name, path in vars(files).items():
        if path is not None:
            write_atomic(path, getattr(result, name)().encode())
    output.show(result, file)
    if result.exit_code:
        if output.is_json() or output.is_quiet():  # the table has it
            click.echo(f"{result.outcome}: {result.reason()}", err=True)
        raise SystemExit(result.exit_code)


def _remove_earlier(outputs: Iterable[Path], *inputs: Path) -> None:
    """Remove results of an earlier run: one that ends in an error leaves none."""
    from qtool.core.atomic import check_writable

    for path in outputs:
        check_writable(path, *inputs)
        if path.is_file():
            path.unlink()


def _read(named: Sources) -> list[Path]:
    """Return the files of the samples and labels: none of them may be overwritten."""
    roots = map(Path, filter(None, (named.data, named.labels)))
    roots = [root for root in roots if os.path.exists(root)]  # noqa: PTH110
    return [*roots, *(path for root in roots if root.is_dir() for path in root.rglob("*"))]
