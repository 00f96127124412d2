"""qtool convert"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command

from qtool.core.summary import Summary

if TYPE_CHECKING:
    from qtool.cli.sources import EvaluationData

    from qtool import QuantizedModel
    from qtool.evaluation.latency.speedup import Speedup
    from qtool.evaluation.measure.accuracy import Accuracy
    from qtool.verification import Verification


@click.command("convert", cls=Command)
@source_options.apply(
    source_options.model,
    source_options.weights,
    click.option(
        "--calibration",
        required=True,
        type=source_options.Path_,
        help="File written by `qtool calibrate`.",
    ),
    options.output,
    options.target,
    options.format_,
    options.external_data,
    options.image_layout,
    options.interface,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    source_options.dynamic,
    options.min_coverage,
    options.min_sqnr,
    options.timing,
    options.json_,
)
def command(
    model: str,
    weights: Path | None,
    calibration: Path,
    output_: Path,
    target: str | None,
    format_: str,
    external_data: bool,
    layout: str,
    interface: str | None,
    recipe: Path | None,
    mode: str | None,
    accuracy: str | None,
    recover: str | None,
    dynamic: tuple[str, ...],
    min_coverage: float | None,
    min_sqnr: float | None,
    timing: float,
    as_json: bool,
) -> None:
    """Write the verified int8 ONNX model of a calibrated MODEL.

    \b
    Example:
      qtool convert examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --calibration digits.calib -o digits.int8.onnx
    """
    import qtool
    from qtool.core.atomic import check_writable
    from qtool.core.option_names import file_format, suffixes_of
    from qtool.planning.targets import check_format

    kind = file_format(output_, format_)
    check_writable(output_, model, weights, calibration, suffixes=suffixes_of(format_))
    check_format(target or qtool.Calibration.load(calibration).target, kind)
    loaded = sources.load_model(model, weights)
    quantized = qtool.convert(
        loaded,
        calibration,
        target=target,
        recipe=recipe,
        mode=mode,
        accuracy=accuracy,
        recover=options.names(recover),
        dynamic=sources.parse_dynamic(dynamic),
    )
    goals = (min_coverage, min_sqnr)
    extra = partial(sources.write_companions, model, loaded)
    ports = (layout, interface)
    write(quantized, output_, goals, timing, as_json, format_, external_data, extra, ports)


def write(
    quantized: QuantizedModel,
    path: Path,
    goals: tuple[float | None, float | None],
    timing: float,
    as_json: bool,
    format_: str = "qdq",
    external_data: bool = False,
    write_extra: Callable[[Path, Summary], object] | None = None,
    ports: tuple[str, str | None] = ("nhwc", None),
    evaluation: EvaluationData | None = None,
) -> None:
    """Export, verify and time a model, and print the results.

    Args:
        goals: least share of MACs in integer kernels, and least SQNR (dB) of an output; None for
            no goal.
        timing: seconds for the speed comparison; 0 skips it.
        write_extra: writes files that go with the model, from its path and what was measured.
        ports: layout and interface of a TFLite file.
        evaluation: data to measure the accuracy on; None skips it.

    Raises:
        SystemExit: with 1, a goal is missed.
    """
    from qtool.api.evaluation import measure_accuracy
    from qtool.backends.onnxruntime.model_file import ONNX
    from qtool.backends.table import format_of, open_file
    from qtool.core.option_names import file_format
    from qtool.evaluation.latency.speedup import measure_speedup, untimed_reason

    with output.status("exporting and verifying"):
        result = quantized.export(
            path,
            format=format_,
            external_data=external_data,
            layout=ports[0],
            interface=ports[1],
            timing=0,
        )
    assert result is not None
    is_onnx = format_of(file_format(path, format_)) is ONNX
    target, speed, untimed = quantized.plan.target, None, ""
    if timing and not (untimed := untimed_reason(target, path.suffix.lower())):
        with output.status("timing"):
            speed = measure_speedup(quantized, path, seconds=timing)
    accuracy = None
    if evaluation is not None:
        accuracy = measure_accuracy(
            quantized,
            path,
            evaluation.batches,
            evaluation.labels,
            progress=output.progress("evaluating", output.length_of(evaluation.batches)),
        )
    missed = _missed(result, *goals)
    size = sum(f.stat().st_size for f in (open_file(path).parts if is_onnx else [path]))
    whole = 0 if speed is None else speed.float_bytes
    sizes = (size, quantized.captured.file_bytes or whole or quantized.float_bytes)
    summary = _summary(quantized, path, sizes, result, speed, untimed)
    if accuracy is not None and evaluation is not None:
        summary = _with_accuracy(summary, accuracy, evaluation.kind)
    if write_extra is not None:
        write_extra(path, summary)
    if as_json:
        from qtool.cli.documents import ModelFile

        plan = quantized.plan
        met = {f"{goal}_met": not missed[goal] for goal in missed}
        metrics = () if accuracy is None else accuracy.metrics
        facts = (path, size, plan.target, plan.recipe.mode, speed)
        file = ModelFile(*facts, **met, metrics=metrics, float_size_bytes=sizes[1])
        output.show_json(file, replace(result, notes=(*quantized.notes, *result.notes)))
    else:
        details = [result.details(), *([] if speed is None else [str(speed)])]
        output.show_summary(summary, "\n".join(details))
    if speed is not None and (warning := speed.warning()) is not None:
        output.warn(warning)
    for sentence in filter(None, missed.values()):
        output.warn(f"{sentence}; the file was written")
    if any(missed.values()):
        raise SystemExit(1)


def _summary(
    quantized: QuantizedModel,
    path: Path,
    sizes: tuple[int, int],
    result: Verification,
    speed: Speedup | None,
    untimed: str,
) -> Summary:
    """Return the summary of a file.

    Args:
        quantized: the model of the file.
        path: of the file.
        sizes: of the file and of the float model's, in bytes.
        result: of the verification.
        speed: of the file; None if it was not timed.
        untimed: why there is no speed, or "".
    """
    from qtool.evaluation.summary_rows import growth_warning, size_row
    from qtool.planning.mode_titles import plan_title

    plan = quantized.plan
    text = f"{plan_title(plan)}, for {plan.target}"
    rows = [size_row(*sizes)]
    if speed is not None:
        rows += speed.rows()
    elif untimed:
        rows.append(("speed", f"not measured: {untimed}"))
    summary = result.summary(str(path), text)
    notes = (*quantized.notes, *summary.notes)
    warnings = (*growth_warning(*sizes), *summary.warnings)
    return replace(summary, rows=(*rows, *summary.rows), notes=notes, warnings=warnings)


def _with_accuracy(summary: Summary, accuracy: Accuracy, kind: str) -> Summary:
    """Return the summary with metrics and agreement, after the speed.

    Args:
        kind: of the samples.
    """
    from qtool.evaluation.summary_rows import accuracy_rows

    where = " (calibration data)" if kind == "calibration" else ""
    rows = [(label, f"{text}{where}") for label, text in accuracy_rows(accuracy)]
    before = [row for row in summary.rows if row[0] not in ("integer", "weights", "verified")]
    after = summary.rows[len(before) :]
    warnings = tuple(f"warning: {warning}" for warning in accuracy.warnings)
    return replace(summary, rows=(*before, *rows, *after), warnings=(*summary.warnings, *warnings))


def _missed(
    result: Verification, min_coverage: float | None, min_sqnr: float | None
) -> dict[str, str]:
    """Return goal -> a sentence if it was missed, else an empty text."""
    worst = result.fidelity.worst
    coverage = sqnr = ""
    if min_coverage is not None:
        coverage = result.coverage.missed(min_coverage, f"--min-coverage {min_coverage:g}")
    if min_sqnr is not None and not worst >= min_sqnr:
        sqnr = f"SQNR is {worst:.1f} dB, below --min-sqnr {min_sqnr:g}"
    return {"min_coverage": coverage, "min_sqnr": sqnr}
