"""qtool report"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, sources
from qtool.cli.number_types import COUNT, Real

from qtool.evaluation.options import ReportOptions


@click.command("report")
@click.argument("source", metavar="MODEL|FILE.onnx")
@sources.apply(
    sources.weights,
    sources.data,
    options.report_folder(True, "The folder to write."),
    click.option("--model", help="The float model of FILE.onnx: as MODEL, or an .onnx file."),
    click.option(
        "--calibration", type=sources.Path_, help="For MODEL: what `qtool calibrate` wrote."
    ),
    click.option("--calibration-data", help="For MODEL: data to calibrate on; by default --data."),
    options.labels,
    options.eval_,
    options.minimize,
    sources.batch_size,
    options.batch_sizes,
    options.threads,
    options.seconds,
    click.option(
        "--samples",
        default=ReportOptions.samples,
        show_default=True,
        type=COUNT,
        help="How many of the first samples to measure the layers on.",
    ),
    click.option(
        "--budget",
        default=ReportOptions.budget,
        show_default=True,
        type=Real(min=2.5),
        help="What measuring the layers may cost, in runs of the float model.",
    ),
    options.observer,
    options.target,
    options.recipe,
    options.mode,
    sources.dynamic,
    options.max_drop,
    options.min_speedup,
    options.min_coverage,
    options.json_,
)
def command(
    source: str,
    weights: Path | None,
    data: str,
    output_: Path,
    model: str | None,
    calibration: Path | None,
    calibration_data: str | None,
    dynamic: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Say whether to ship MODEL in int8, or FILE.onnx: a report to look at.

    Writes report.html, report.md and report.json. MODEL (package.module:factory or .pt2) is
    calibrated and converted first, and its int8 file written, too. A run that is interrupted goes
    on where it stopped.

    \b
    Example:
      qtool report digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --data examples/digits/eval.npz --labels labels -o digits-report
    """
    import qtool

    size = given["batch_size"]
    made = _file_or_model(source, weights)
    reference = None if model is None else _file_or_model(model, weights)
    batches = sources.load_data(data, size, given["labels"])
    found = qtool.report(
        made,
        batches,
        output_,
        options.asked({"data": data, **given}, batches),
        model=reference,
        calibration=calibration,
        calibration_data=sources.load_data(calibration_data, size) if calibration_data else None,
        dynamic=sources.dynamic_of(dynamic, batches),
        bars=output.progress,
        **{name: given[name] for name in ("target", "observer", "recipe", "mode")},
    )
    output.show(found, as_json)
    if not as_json:
        output.say(f"{output_ / 'report.html'}")
    output.exit_if_missed(found)


def _file_or_model(source: str, weights: Path | None) -> Any:
    return Path(source) if source.endswith(".onnx") else sources.load_model(source, weights)
