"""qtool convert"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from qtool.cli import options, output, sources

if TYPE_CHECKING:
    from qtool import QuantizedModel
    from qtool.verification import Verification


@click.command("convert")
@sources.apply(
    sources.model,
    sources.weights,
    click.option(
        "--calibration", required=True, type=sources.Path_, help="What `qtool calibrate` wrote."
    ),
    options.output,
    options.target,
    options.format_,
    options.external_data,
    options.recipe,
    options.mode,
    options.accuracy,
    options.recover,
    sources.dynamic,
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
    from qtool.planning.targets import check_format

    check_writable(output_, model, weights, calibration)
    check_format(target or qtool.Calibration.load(calibration).target, format_)
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
    write(quantized, output_, goals, timing, as_json, format_, external_data)


def write(
    quantized: QuantizedModel,
    path: Path,
    goals: tuple[float | None, float | None],
    timing: float,
    as_json: bool,
    format_: str = "qdq",
    external_data: bool = False,
    beside: Callable[[Path], object] | None = None,
) -> None:
    """Exports, verifies, times and reports; exit code 1 if a goal (share of MACs in integers, dB of
    the worst output) is missed. beside: writes what goes with the file."""
    from qtool.backends.onnx.storage import model_files
    from qtool.evaluation.latency.speedup import measure_speedup

    with output.status("exporting and verifying"):
        result = quantized.export(path, format=format_, external_data=external_data, timing=0)
    assert result is not None
    if beside is not None:
        beside(path)
    with output.status("timing"):
        found = measure_speedup(quantized, path, seconds=timing) if timing else None
    missed = _missed(result, *goals)
    if as_json:
        shown = {"file": str(path), "notes": list(quantized.notes), **result.to_json()}
        shown["speed"] = found.to_json() if found is not None else None
        output.show_json({**shown, **{f"{goal}_met": not missed[goal] for goal in missed}})
    else:
        size = sum(f.stat().st_size for f in model_files(path))
        output.say(f"{path}: {size / 1024:.0f} KiB")
        output.say(str(result))
        if found is not None:
            output.say(str(found))
        for note in quantized.notes:
            output.say(f"note: {note}")
    if found is not None and (warning := found.warning()) is not None:
        click.echo(warning, err=True)
    for sentence in filter(None, missed.values()):
        click.echo(f"{sentence}; the file was written all the same", err=True)
    if any(missed.values()):
        raise SystemExit(1)


def _missed(
    result: Verification, min_coverage: float | None, min_sqnr: float | None
) -> dict[str, str]:
    """Goal -> a sentence where it was missed, else nothing."""
    share, worst = result.coverage.share, result.fidelity.worst
    coverage = min_coverage is not None and share < min_coverage
    sqnr = min_sqnr is not None and not worst >= min_sqnr
    return {
        "min_coverage": f"integer share {share:.4f} is below the {min_coverage:g} asked for"
        if coverage
        else "",
        "min_sqnr": f"an output has {worst:.1f} dB of the {min_sqnr:g} asked for" if sqnr else "",
    }
