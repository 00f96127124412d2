"""Options that name the model and the data of a command, and say how to read them.

Those on reading (task, transform, tokenizer) are kept in click's context, where `sources` looks
them up, so that commands do not have to pass them on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from qtool.cli.number_types import COUNT, Real

from qtool.core.errors import QtoolError
from qtool.core.hub_cache import local_model
from qtool.core.path_arguments import model_file

F = TypeVar("F", bound=Callable[..., Any])
_Name = str | os.PathLike[str]
_Context = click.Context | None


class _Path(click.Path):
    """A path without a NUL character: os.stat raises ValueError for one."""

    def convert(self, value: _Name, param: click.Parameter | None, ctx: _Context) -> Any:
        if "\0" in os.fspath(value):
            self.fail(f"{os.fspath(value)!r} holds a NUL character; no path has one.", param, ctx)
        return super().convert(value, param, ctx)


class _ModelFile(_Path):
    """A model file, or the folder of one; data for it is read with the processors next to it."""

    def convert(self, value: _Name, param: click.Parameter | None, ctx: _Context) -> Any:
        try:
            file = model_file(super().convert(value, param, ctx))
        except QtoolError as error:
            self.fail(str(error), param, ctx)
        if ctx is not None:
            ctx.meta.setdefault(f"{__name__}.model_files", []).append(file)
        return file


Path_ = _Path(path_type=Path)
ModelFile = _ModelFile(path_type=Path)
ExistingPath = _Path(path_type=Path, exists=True)
NO_DATA = "none"


def _context_option(name: str, *spelled: str, **options: Any) -> Callable[[F], F]:
    """Return an option whose value is stored in the context, not passed to the command."""

    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.meta[f"{__name__}.{name}"] = value

    return click.option(*spelled, expose_value=False, callback=store, **options)


def context_value(name: str) -> Any:
    """Return the value of an option on reading; None if the command has no such option."""
    return click.get_current_context().meta.get(f"{__name__}.{name}")


def remember_model(source: str, model: Any) -> None:
    """Store the model, for which data and labels are read."""
    click.get_current_context().meta[_MODEL] = (source, model)


def loaded_model() -> tuple[str | None, Any]:
    """Return the value of MODEL and the model; None before it is loaded."""
    known: tuple[str | None, Any] = click.get_current_context().meta.get(_MODEL, (None, None))
    return known


_MODEL = f"{__name__}.model"


def processor_folder(source: str | None) -> Path | None:
    """Return the folder with a tokenizer and the like: that of MODEL, or the first one that a model
    file of the command is in."""
    from qtool.frontends.huggingface.folder_layout import model_folder_of

    if source is not None and Path(source).is_dir():
        return Path(source)
    folders = map(model_folder_of, context_value("model_files") or ())
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def apply(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several options into one decorator; the help lists them in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def from_cache(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Return the folder of a model in the local Hugging Face cache; other values as they are."""
    return value if value is None else type(value)(local_model(str(value)))


model = click.argument("model", callback=from_cache)
float_model = click.option(
    "--model",
    required=True,
    callback=from_cache,
    help="The float model, as for `qtool quantize`.",
)
task = _context_option(
    "task",
    "--task",
    help="Task of a transformers model folder: text-classification, feature-extraction, ...; by "
    "default the one that its weights were saved for.",
)
cache = _context_option(
    "cache",
    "--cache",
    type=click.Choice(["float", "int8"]),
    default="float",
    show_default=True,
    help="Type of the KV cache with --task text-generation-with-past; int8 has one scale per "
    "channel.",
)
attention = _context_option(
    "attention",
    "--attention",
    type=click.Choice(["fused", "masked"]),
    default="fused",
    show_default=True,
    help="Attention with --task text-generation-with-past: fused is one kernel per layer, for "
    "texts padded on the right; masked is slower and takes any padding.",
)
logits = _context_option(
    "logits",
    "--logits",
    type=click.Choice(["all", "last"]),
    default="all",
    show_default=True,
    help="Tokens whose logits are returned with --task text-generation-with-past: generation needs "
    "those of the last one only.",
)
decoder = apply(cache, attention, logits)
fix = _context_option(
    "fix",
    "--fix",
    multiple=True,
    metavar="INPUT=VALUE",
    help="Make an input of an .onnx file a constant, such as sr=16000; an If on it becomes one of "
    "its branches. The written file has the input no more.",
)
weights = apply(
    click.option(
        "--weights",
        type=Path_,
        help="State dict of MODEL: .safetensors or .pt (loaded without running pickled code).",
    ),
    fix,
    task,
)
_reading = apply(
    _context_option(
        "samples",
        "--samples",
        type=COUNT,
        help="Use this many samples of --data: of files evenly spaced ones, of a function's "
        "batches the first ones; by default all.",
    ),
    _context_option(
        "column",
        "--column",
        metavar="NAME,...",
        help="Columns of a table in --data to use: of numbers, or of the text (or two texts) of a "
        "sample; by default usual names of texts, else all numbers.",
    ),
    _context_option(
        "states",
        "--state",
        multiple=True,
        metavar="OUTPUT=INPUT",
        help="For a recurrent model: MODEL's OUTPUT is its INPUT in the next step. --data then has "
        "recordings, each file of arrays with a row per step, and the float model runs over them; "
        "auto pairs the outputs with the inputs that the data lacks. Repeatable.",
    ),
    _context_option(
        "transform",
        "--transform",
        metavar="NAME",
        help="Image preprocessing: torchvision weights such as ResNet18_Weights.DEFAULT, timm, or "
        "package.module:function; by default the one in MODEL's folder.",
    ),
    _context_option(
        "processor",
        "--processor",
        type=Path_,
        help="Folder with a tokenizer, image processor or feature extractor; by default MODEL.",
    ),
    _context_option(
        "max_length", "--max-length", type=COUNT, help="Maximum text length in tokens."
    ),
    _context_option(
        "padded",
        "--pad-to-max-length",
        is_flag=True,
        help="Pad every text to --max-length; by default texts of one length form a batch.",
    ),
    _context_option(
        "unreadable",
        "--max-unreadable",
        default=0.0,
        show_default=True,
        type=Real(0, 1),
        help="Skip unreadable image and sound files, up to this share of the data (0 to 1).",
    ),
)
_DATA = (
    "Folder of image, sound or .npy/.npz files; a .npy, .npz, .txt, .csv, .parquet, .json or "
    ".jsonl file; or package.module:function that returns an iterable of batches."
)
data = apply(click.option("--data", required=True, help=_DATA), _reading)


def data_unless(what: str) -> Callable[[F], F]:
    """Return the options of data that a command does not need for something."""
    return apply(click.option("--data", help=f"{_DATA} Not needed for {what}."), _reading)


def data_or_none(required: bool) -> Callable[[F], F]:
    """Return the options of data that may be generated.

    Args:
        required: whether --data has to be named.
    """
    without = "" if required else " Not needed for --mode weight-only without recovery steps."
    return apply(
        click.option(
            "--data",
            required=required,
            help="Folder of image, sound or .npy/.npz files; a .npy, .npz, .txt, .csv, .parquet, "
            ".json or .jsonl file; package.module:function that returns an iterable of batches; or "
            f"none: inputs are generated from the statistics of MODEL's BatchNorms.{without}",
        ),
        click.option(
            "--shape",
            metavar="SIZE,...",
            help="Shape of one sample, such as 3,224,224; for --data none if MODEL does not define "
            "it.",
        ),
        _reading,
    )


data_or_random = apply(
    click.option("--data", help="Data as for `qtool quantize`; by default random inputs."),
    _reading,
)
batch_size = click.option(
    "--batch-size", default=32, show_default=True, type=COUNT, help="Batch size for data files."
)
classes = _context_option(
    "classes",
    "--classes",
    metavar="NAME,...|FILE",
    help="Names of the classes in the order of the model's outputs, for labels that are names of "
    "folders, or a file with one per line; by default classes.txt in the folder, else those of "
    "MODEL, else alphabetical order.",
)
stride = _context_option(
    "stride",
    "--stride",
    type=COUNT,
    help="Read a .txt file as one text, in windows of --max-length tokens that begin this many "
    "tokens apart; each token counts once. By default each line is a text.",
)
