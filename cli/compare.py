"""qtool compare"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, sources


@click.command("compare")
@click.argument("files", nargs=-1, required=True, type=sources.Path_)
@sources.apply(
    sources.data,
    options.report_folder(False, "A folder for the report."),
    click.option(
        "--reference",
        type=sources.Path_,
        help="Which of FILES is the reference; by default the first.",
    ),
    options.labels,
    options.eval_,
    options.minimize,
    sources.batch_size,
    options.batch_sizes,
    options.threads,
    options.seconds,
    options.max_drop,
    options.min_speedup,
    options.min_coverage,
    options.json_,
)
def command(
    files: tuple[Path, ...],
    data: str,
    output_: Path | None,
    reference: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Put several ONNX FILES side by side: accuracy, speed, size; made by qtool or not.

    \b
    Example:
      qtool compare float.onnx digits.int8.onnx other-tool.onnx \\
          --data examples/digits/eval.npz --labels labels -o compared
    """
    import qtool

    batches = sources.load_data(data, given["batch_size"], given["labels"])
    found = qtool.compare(
        files,
        batches,
        output_,
        options.asked({"data": data, **given}, batches),
        reference=reference,
        bars=output.progress,
    )
    if not as_json:
        output.say(f"{found.table()}\n")
    output.show(found, as_json)
    if output_ is not None and not as_json:
        output.say(f"{output_ / 'report.html'}")
    output.exit_if_missed(found)
