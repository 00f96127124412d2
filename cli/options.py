"""Options that several commands share, and the conversion of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
from qtool.cli import source_options, value_types
from qtool.cli.command import JSON, stored
from qtool.cli.records import record
from qtool.cli.source_options import F, Path_

from qtool.core.option_names import NATIVE
from qtool.evaluation.options import Goals, ReportOptions


def _report_folder(
    ctx: click.Context, param: click.Parameter, value: Path | None
) -> Path | None:  # click's signature
    """Check the folder before the work starts and before torch is loaded."""
    from qtool.evaluation.report.page.folder import check_folder

    if value is not None:
        check_folder(value)
    return value


# --- models, data, conversion ------------------------------------------------------------------


runtime = click.option(
    "--runtime",
    type=value_types.RUNTIME,
    default=NATIVE,
    show_default=True,
    help="Where to run the files. onnxruntime: this machine (.tflite files run in LiteRT). node: "
    "onnxruntime-web's WebAssembly, on one thread, which has to be installed.",
)
output_kind = click.option(
    "--output-kind",
    multiple=True,
    metavar="NAME=KIND",
    help="What an output is, by which it is judged, where neither the model nor labels say so: "
    "class, token, pixel, threshold, detection, cosine or numbers. Repeatable.",
)
output = click.option(
    "-o",
    "--output",
    "output_",
    required=True,
    type=Path_,
    help="File to write: NAME.onnx for every target, NAME.tflite for TFLite; of a model folder "
    "also a folder.",
)
calibration_output = click.option(
    "-o", "--output", "output_", required=True, type=Path_, help="Calibration file to write."
)
other_model = click.option(
    "--other-model",
    is_flag=True,
    help="Accept a float model with other weights than a file was made from.",
)
json_ = click.option(
    "--json",
    "as_json",
    is_flag=True,
    expose_value=False,
    callback=stored(JSON),
    help="Print the result as JSON.",
)
cpu = click.option(
    "--cpu",
    metavar="NAME,...",
    help="Run the file on these emulated processors: haswell, nehalem, cortex-a53, "
    "neoverse-n1, neoverse-n2, wasm, or all that are installed.",
)

# --- reports -----------------------------------------------------------------------------------


def report_folder(required: bool) -> Callable[[F], F]:
    """Return the option -o of a command that writes a report."""
    return click.option(
        *("-o", "--output", "output_"),
        required=required,
        type=Path_,
        callback=_report_folder,
        help="Folder for the report.",
    )


labels = click.option(
    "--labels",
    metavar="KEY|FILE",
    help="Class numbers, or numbers to predict: name of an array in the --data file (.npz) or of a "
    "column (.csv, .jsonl, ...), or a .npy/.npz file.",
)
eval_ = click.option(
    "--eval",
    "evaluate",
    metavar="MODULE:FUNCTION",
    help="Your metric function: it takes a model (callable like the float model), or outputs and "
    "labels of --data, and returns a number, one number per sample, or a dict of these.",
)
fail_on = click.option(
    "--fail-on",
    type=click.Choice(["review", "bad"]),
    help='Exit with 1 by the verdict on a model: bad for "Do not ship", review for "Needs review", '
    "too.",
)


# --- values ------------------------------------------------------------------------------------


def load_metrics(source: str | None) -> Callable[[Any], Any] | None:
    """Import the function that --eval names.

    Raises:
        DataError: it cannot be imported, or is not a function.
    """
    if source is None:
        return None
    from qtool.core.errors import DataError
    from qtool.core.remedies import CallEdit
    from qtool.frontends.named_objects import import_object

    if ":" not in source:
        raise DataError(f"'{source}' names no function", CallEdit("write module:function"))
    function = import_object(source, DataError)
    if not callable(function):
        raise DataError(f"{source} is a {type(function).__name__}, not a function")
    return function


def measured(names: str = "") -> Callable[[F], F]:
    """Return --eval, goals, and the fields of `ReportOptions` of these names, as `measured`: the
    function is named and not loaded."""

    def decorate(function: F) -> F:
        @wraps(function)
        def command(
            *args: Any, evaluate: str | None, measured: ReportOptions, goals: Goals, **values: Any
        ) -> Any:
            measured = replace(measured, goals=goals, where=evaluate or "")
            return function(*args, measured=measured, **values)

        parts = eval_, record("measured", ReportOptions, names), record("goals", Goals)
        return source_options.apply(*parts)(command)

    return decorate


def report_options(chosen: ReportOptions, labels: Any) -> ReportOptions:
    """Return the options of a report with the function of --eval and the labels.

    Args:
        chosen: options that `measured` gave the command.
        labels: [samples] class numbers; None if there are none.
    """
    return replace(chosen, labels=labels, function=load_metrics(chosen.where or None))
