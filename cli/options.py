"""Options that several commands share, and the conversion of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from qtool.cli import name_types
from qtool.cli.number_types import DAY, Real, parse_counts
from qtool.cli.source_options import F, Path_

from qtool.core.option_names import FOLDER_LAYOUTS, IMAGE_LAYOUTS, NATIVE
from qtool.core.text_files import read_toml_or_json
from qtool.evaluation.options import Goals, ReportOptions


def _join(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _report_folder(
    ctx: click.Context, param: click.Parameter, value: Path | None
) -> Path | None:  # click's signature
    """Check the folder before the work starts and before torch is loaded."""
    from qtool.evaluation.report.page.folder import check_folder

    if value is not None:
        check_folder(value)
    return value


def _recipe_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Check the rules before a model is loaded, and that there are any before torch is."""
    if value is not None:
        read_toml_or_json(value, "recipe")
        from qtool.planning.recipe import Recipe

        Recipe.of(value)
    return value


# --- models, data, conversion ------------------------------------------------------------------


runtime = click.option(
    "--runtime",
    type=name_types.RUNTIME,
    default=NATIVE,
    show_default=True,
    help="Where to run the files. onnxruntime: this machine (.tflite files run in LiteRT). node: "
    "onnxruntime-web's WebAssembly, on one thread. "
    "webgpu: ONNX Runtime's WebGPU provider on a GPU. `qtool emulators` says what these two need.",
)
observer = click.option(
    "--observer",
    type=name_types.OBSERVER,
    help="Range estimator, optionally with a parameter: percentile:99.99.",
)
target = click.option(
    "--target",
    type=name_types.TARGET,
    help="Runtime to quantize for; by default onnxruntime, for a .tflite file tflite, for C source "
    "tflite-micro.",
)
external_data = click.option(
    "--external-data",
    is_flag=True,
    help="Write the weights to a separate file next to the model; always done above 2 GiB.",
)
format_ = click.option(
    "--format",
    "format_",
    type=name_types.FORMAT,
    default="qdq",
    show_default=True,
    help="qdq: float operators between QuantizeLinear and DequantizeLinear. qoperator: integer "
    "operators such as QLinearConv. A name in .tflite asks for tflite; c-array: that as C source.",
)
layout = click.option(
    "--layout",
    type=click.Choice((*FOLDER_LAYOUTS, *IMAGE_LAYOUTS)),
    help="Layout of what is written: of a transformers folder for the library that loads it "
    "(shared, the default, is for all of them), or of images at the interface of a .tflite file "
    "(nhwc is the default, nchw PyTorch's).",
)
interface = click.option(
    "--interface",
    type=click.Choice(("float", "int8")),
    default=None,
    help="Inputs and outputs of a .tflite file; by default int8 on microcontrollers, else float.",
)
batch = click.option(
    "--batch",
    type=click.Choice(("1", "dynamic")),
    default=None,
    help="Samples that a .tflite file takes at a time; by default 1 on microcontrollers and where "
    "that is faster, else any number.",
)
recipe = click.option(
    "--recipe",
    type=Path_,
    callback=_recipe_file,
    metavar="FILE",
    help="A .toml or .json file with rules for individual layers, such as "
    'rules = [{select = "head.*", as = "float"}].',
)
mode = click.option(
    "--mode",
    type=name_types.MODE,
    default=None,
    help="Quantization scheme for layers that no rule of the recipe matches; by default static, "
    "for transformers in .tflite files dynamic.",
)
accuracy = click.option(
    "--accuracy",
    type=name_types.ACCURACY,
    default=None,
    help="How much effort to spend on recovering accuracy; by default balanced.",
)
recover = click.option(
    "--recover",
    type=name_types.STEPS,
    metavar="STEP,...",
    default=None,
    help=f"Run exactly these accuracy recovery steps: {', '.join(name_types.STEPS.known)}.",
)
ignore = click.option(
    "--ignore",
    multiple=True,
    metavar="NODE",
    help="Leave a node in float: its name, a glob such as head.*, re: and a regex, or op: and an "
    "operator such as op:linear. Repeatable.",
)
output_kind = click.option(
    "--output-kind",
    multiple=True,
    metavar="NAME=KIND",
    help="What an output is, by which it is judged, where neither the model nor labels say so: "
    "class, token, pixel, threshold, detection, cosine or numbers. Repeatable.",
)
measure = click.option(
    "--measure",
    type=Path_,
    metavar="FILE",
    help="Time the layers on this machine, leave in float those that are slower in integers, and "
    "write that choice to a .toml or .json FILE, which --recipe repeats anywhere.",
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
json_ = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
cpu = click.option(
    "--cpu",
    metavar="NAME,...",
    help="Run the file on these emulated processors: haswell, nehalem, cortex-a53, "
    "neoverse-n1, neoverse-n2, wasm, or all that are installed, which `qtool emulators` lists; "
    "or webgpu alone, the WebGPU provider on a software adapter.",
)
min_coverage = click.option(
    "--min-coverage",
    type=Real(0, 1),
    help="Exit with 1 if a smaller share of the MACs (0 to 1) runs in integer kernels.",
)
min_sqnr = click.option(
    "--min-sqnr",
    type=Real(),
    help="Exit with 1 if the SQNR of an output against the float model is lower (dB).",
)
timing = click.option(
    "--seconds",
    "timing",
    default=1.0,
    show_default=True,
    type=Real(min=0, max=DAY),
    help="Time limit of the speed comparison with the float model, if the target's runtime is on "
    "this machine; 0 skips it.",
)

# --- reports -----------------------------------------------------------------------------------


def report_folder(required: bool, text: str) -> Callable[[F], F]:
    """Return the option -o of a command that writes a report."""
    return click.option(
        "-o",
        "--output",
        "output_",
        required=required,
        type=Path_,
        callback=_report_folder,
        help=text,
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
minimize = click.option(
    "--minimize",
    multiple=True,
    metavar="NAME",
    help="Name of an --eval metric for which lower is better.",
)
batch_sizes = click.option(
    "--batch-sizes",
    default=_join(ReportOptions.batch_sizes),
    show_default=True,
    callback=parse_counts,
    help="Batch sizes to benchmark, for example 1,32.",
)
threads = click.option(
    "--threads",
    default=_join(ReportOptions.threads),
    show_default=True,
    callback=parse_counts,
    help="Numbers of threads to benchmark with, for example 1,4.",
)
seconds = click.option(
    "--seconds",
    default=ReportOptions.seconds,
    show_default=True,
    type=Real(min=0, max=DAY, min_open=True),
    help="Time limit for each benchmark.",
)
max_drop = click.option(
    "--max-drop",
    type=Real(),
    help="Exit with 1 if the first metric drops by more (0.01 of top-1 accuracy is one point).",
)
history = click.option(
    "--history",
    type=Path_,
    metavar="FILE",
    help="Append a line of JSON on this run to FILE, such as history.jsonl.",
)
min_speedup = click.option(
    "--min-speedup",
    type=Real(min=0, min_open=True),
    help="Exit with 1 if the speed-up is smaller.",
)
fail_on = click.option(
    "--fail-on",
    type=click.Choice(["review", "bad"]),
    help='Exit with 1 by the verdict on a model: bad for "Do not ship", review for "Needs review", '
    "too.",
)


# --- values ------------------------------------------------------------------------------------


def names(text: str | None) -> list[str] | None:
    """Split a comma-separated list; return None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


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
    metrics: Callable[[Any], Any] = function
    return metrics


def report_options(values: dict[str, Any], labels: Any) -> ReportOptions:
    """Return the options of a report from the values of a command's options.

    An option that the command does not have keeps its default.

    Args:
        values: option name -> value.
        labels: [samples] class numbers; None if there are none.
    """
    same = ("batch_sizes", "threads", "seconds", "budget", "history")
    if "layer_samples" in values:
        values = {**values, "samples": values["layer_samples"]}
        same = (*same, "samples")
    return ReportOptions(
        labels=labels,
        function=load_metrics(values["evaluate"]),
        where=values["evaluate"] or "",
        lower_is_better=values["minimize"],
        goals=Goals(values["max_drop"], values["min_speedup"], values["min_coverage"]),
        **{name: values[name] for name in same if name in values},
    )
