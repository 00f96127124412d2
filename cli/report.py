"""qtool report"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from qtool.cli import options, output

if TYPE_CHECKING:
    from qtool.analysis.gather import Options
    from qtool.analysis.report import Report


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of numbers like 1,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


labels = click.option(
    "--labels",
    metavar="KEY|FILE",
    help="Class numbers: the name of an array in the .npz given as --data, or a .npy/.npz file.",
)
eval_ = click.option(
    "--eval",
    "evaluate",
    metavar="MODULE:FUNCTION",
    help="Your metrics: a function that takes a model (callable as the float model is) and returns "
    "a number, one number a sample, or a dict of these.",
)
minimize = click.option(
    "--minimize", multiple=True, metavar="NAME", help="A metric of --eval of which less is better."
)
batch_sizes = click.option(
    "--batch-sizes", default="1,32", show_default=True, callback=_numbers, help="To time."
)
threads = click.option(
    "--threads", default="1", show_default=True, callback=_numbers, help="To time with."
)
seconds = click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="For each timing.",
)
max_drop = click.option(
    "--max-drop",
    type=float,
    help="Exit with 1 if the first metric loses more (0.01 of top-1 is one point).",
)
min_speedup = click.option(
    "--min-speedup", type=float, help="Exit with 1 if it is not so many times as fast."
)


@click.command("report")
@click.argument("source", metavar="MODEL|FILE.onnx")
@options.apply(
    options.weights,
    options.data,
    click.option(
        "-o", "--output", "output_", required=True, type=options.Path_, help="The folder to write."
    ),
    click.option("--model", help="The float model of FILE.onnx: as MODEL, or an .onnx file."),
    click.option(
        "--calibration", type=options.Path_, help="For MODEL: what `qtool calibrate` wrote."
    ),
    click.option("--calibration-data", help="For MODEL: data to calibrate on; by default --data."),
    labels,
    eval_,
    minimize,
    options.batch_size,
    batch_sizes,
    threads,
    seconds,
    click.option(
        "--samples",
        default=512,
        show_default=True,
        type=click.IntRange(1),
        help="How many of the first samples to measure the layers on.",
    ),
    click.option(
        "--budget",
        default=3.5,
        show_default=True,
        type=click.FloatRange(min=2.5),
        help="What measuring the layers may cost, in runs of the float model.",
    ),
    options.observer,
    options.target,
    options.dynamic,
    max_drop,
    min_speedup,
    options.min_coverage,
    options.json_,
)
def command(source: str, weights: Path | None, output_: Path, as_json: bool, **given: Any) -> None:
    """Say whether to ship MODEL in int8, or FILE.onnx: a report to look at.

    Writes report.html, report.md and report.json. MODEL (package.module:factory or .pt2) is
    calibrated and converted first. A run that is interrupted goes on where it stopped.

    \b
    Example:
      qtool report digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --data examples/digits/eval.npz --labels labels -o digits-report
    """
    from qtool.page.folder import check_folder

    check_folder(output_)
    data = load(given["data"], given["batch_size"], given["labels"])
    asked = wanted(output_.resolve().name, given)
    if source.endswith(".onnx"):
        found = _of_file(Path(source), weights, data, output_, asked, given)
    else:
        found = _of_model(source, weights, data, output_, asked, given)
    finish(found, output_, as_json)


def _of_file(
    file: Path, weights: Path | None, data: Iterable[Any], folder: Path, asked: Options, given: Any
) -> Report:
    from qtool.analysis.restore import read_onnx
    from qtool.analysis.side_by_side import measure_file
    from qtool.data import batches
    from qtool.errors import DataError
    from qtool.page import write_report

    read_onnx(file)
    model = given["model"]
    if model is None or model.endswith(".onnx"):
        reference = None if model is None else Path(model)
        return write_report(
            folder,
            lambda keep: measure_file(file, data, asked, reference=reference, keep=keep, bars=bars),
        )
    import qtool

    first, data = peek(data)
    if first is None:
        raise DataError("the data is empty; give at least one batch")
    loaded = options.load_model(model, weights)
    captured = qtool.capture_model(loaded, first, options.parse_dynamic(given["dynamic"]))

    sample = next(batches([first], captured.graph.module))
    return write_report(
        folder,
        lambda keep: measure_file(
            file,
            data,
            asked,
            reference=captured,
            sample=sample,
            keep=keep,
            bars=bars,
        ),
    )


def _of_model(
    source: str, weights: Path | None, data: Iterable[Any], folder: Path, asked: Options, given: Any
) -> Report:
    import qtool
    from qtool.analysis.side_by_side import measure_quantized
    from qtool.conversion.captured import DEFAULT_OBSERVER
    from qtool.page import write_report
    from qtool.targets import DEFAULT

    calibrating, data = _calibration_data(data, given)
    loaded = options.load_model(source, weights)
    first, calibrating = peek(calibrating)
    captured = qtool.capture_model(loaded, first, options.parse_dynamic(given["dynamic"]))
    if given["calibration"] is not None:
        quantized = qtool.convert(
            captured, given["calibration"], target=given["target"], sample=first
        )
        origin = f"converted by qtool with {given['calibration'].name}"
    else:
        quantized = qtool.quantize(
            captured,
            calibrating,
            target=given["target"] or DEFAULT,
            observer=given["observer"] or DEFAULT_OBSERVER,
            progress=output.progress("calibrating", output.length_of(calibrating)),
        )
        origin = "quantized by qtool"
        if given["calibration_data"] is None:
            origin += ", calibrated on the evaluation data itself"
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "model.int8.onnx"
        return write_report(
            folder,
            lambda keep: measure_quantized(
                quantized, file, data, asked, origin=origin, keep=keep, bars=bars
            ),
            {file.name: file},
        )


def _calibration_data(data: Iterable[Any], given: Any) -> tuple[Iterable[Any], Iterable[Any]]:
    """Data to calibrate on, and the evaluation data; one that can be read once is kept for both."""
    if given["calibration_data"] is not None:
        return options.load_data(given["calibration_data"], given["batch_size"]), data
    if iter(data) is data:
        data = list(data)
    return data, data


# --- shared with compare -----------------------------------------------------------------------


def load(source: str, batch_size: int, key: str | None) -> Iterable[Any]:
    """The data behind --data, without the array that --labels names."""
    inside = key is not None and not Path(key).is_file()
    return options.load_data(source, batch_size, (key,) if inside and key else ())


def wanted(title: str, given: Any) -> Options:
    """What the options ask for."""
    from qtool.analysis.gather import Options
    from qtool.analysis.verdict import Goals

    return Options(
        title=title,
        labels=_labels(given["labels"], given["data"]),
        function=_function(given["evaluate"]),
        where=given["evaluate"] or "",
        lower_is_better=given["minimize"],
        batch_sizes=given["batch_sizes"],
        threads=given["threads"],
        seconds=given["seconds"],
        samples=given.get("samples", 1),
        budget=given.get("budget", 3.5),
        goals=Goals(given["max_drop"], given["min_speedup"], given["min_coverage"]),
    )


def _labels(key: str | None, data: str) -> Any:
    from qtool.data.array_files import read_arrays, read_labels
    from qtool.errors import DataError

    if key is None:
        return None
    if not Path(key).is_file():
        if not Path(data).is_file():
            raise DataError(
                f"there is no labels file {key}, and {data} is no .npz that could hold them"
            )
        return read_labels(Path(data), key)
    arrays = read_arrays(Path(key))
    if len(arrays) > 1 and "labels" not in arrays:
        raise DataError(f"{key} holds {', '.join(arrays)}; name the one with the labels 'labels'")
    return arrays.get("labels", next(iter(arrays.values())))


def _function(source: str | None) -> Callable[[Any], Any] | None:
    from qtool.capture import import_object
    from qtool.errors import DataError

    if source is None:
        return None
    found = import_object(source, DataError)
    if not callable(found):
        raise DataError(f"{source} is a {type(found).__name__}, not a function")
    made: Callable[[Any], Any] = found
    return made


def peek(data: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first item, and data that still begins with it."""
    if iter(data) is not data:
        return next(iter(data), None), data
    items = list(data)
    return (items[0] if items else None), items


def bars(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Progress bars of the stages of a report; the length is found where it is known."""

    def around(items: Iterable[Any]) -> Iterator[Any]:
        known = total if total is not None else output.length_of(items)
        return output.progress(title, known)(items)

    return around


def finish(found: Report, folder: Path | None, as_json: bool) -> None:
    """Says what came out; exit code 1 where a goal that the user set was missed."""
    if as_json:
        output.show_json(found.to_json())
    else:
        for model in found.models:
            if model.verdict is not None:
                output.say(f"{model.name}: {model.verdict.headline}. {model.verdict.text}")
        if folder is not None:
            output.say(f"{folder / 'report.html'}")
    if found.missed:
        click.echo("a goal that was asked for is missed", err=True)
        raise SystemExit(1)
