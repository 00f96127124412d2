"""Models and data of a command: their options, and what they stand for.

How a source is read (a task, a transform, a tokenizer) is looked up here; no command hands it on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from qtool.cli.number_types import COUNT, MOST, Real

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that a file system can have: none takes a NUL character, and os.stat raises."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if "\0" in os.fspath(value):
            self.fail(f"{os.fspath(value)!r} holds a NUL character; no file has one.", param, ctx)
        return super().convert(value, param, ctx)


Path_ = _Path(path_type=Path)
ExistingPath = _Path(path_type=Path, exists=True)
NO_DATA = "none"


def _kept(name: str, *spelled: str, **options: Any) -> Callable[[F], F]:
    """An option that `load_model` and `load_data` look up, and no command has to hand on."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.meta[f"{__name__}.{name}"] = value

    return click.option(*spelled, expose_value=False, callback=keep, **options)


def _kept_value(name: str) -> Any:
    return click.get_current_context().meta.get(f"{__name__}.{name}")


def apply(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order they are listed in the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


model = click.argument("model")
task = _kept(
    "task",
    "--task",
    help="For MODEL, a folder of transformers: text-classification, feature-extraction, ...; "
    "by default what its weights were saved with.",
)
cache = _kept(
    "cache",
    "--cache",
    type=click.Choice(["float", "int8"]),
    default="float",
    show_default=True,
    help="Of a language model with --task text-generation-with-past; int8: a scale a channel.",
)
weights = apply(
    click.option(
        "--weights",
        type=Path_,
        help="State dict for MODEL: .safetensors, or .pt (read without unpickling code).",
    ),
    task,
)
_reading = apply(
    _kept(
        "transform",
        "--transform",
        metavar="NAME",
        help="How images become tensors: torchvision's weights as ResNet18_Weights.DEFAULT, timm, "
        "or package.module:function; by default what lies in MODEL's folder.",
    ),
    _kept(
        "processor",
        "--processor",
        type=Path_,
        help="A folder with a tokenizer, image processor or feature extractor; by default MODEL.",
    ),
    _kept("max_length", "--max-length", type=COUNT, help="Of texts, in tokens."),
    _kept(
        "padded",
        "--pad-to-max-length",
        is_flag=True,
        help="Pad every text to --max-length; by default a batch has texts of one length.",
    ),
    _kept(
        "unreadable",
        "--unreadable",
        default=0.0,
        show_default=True,
        type=Real(0, 1),
        help="The share of images or sounds that may be damaged, and is left out.",
    ),
)
data = apply(
    click.option(
        "--data",
        required=True,
        help="A folder of images, sound or .npy/.npz files; a .npy, .npz, .txt or .jsonl file; or "
        "package.module:function that returns an iterable of batches.",
    ),
    _reading,
)
data_or_none = apply(
    click.option(
        "--data",
        required=True,
        help="A folder of images, sound or .npy/.npz files; a .npy, .npz, .txt or .jsonl file; "
        "package.module:function that returns an iterable of batches; or none: inputs are made "
        "from the statistics of MODEL's BatchNorms.",
    ),
    click.option(
        "--shape",
        metavar="SIZE,...",
        help="Of one sample, for --data none and a MODEL that does not say it: 3,224,224.",
    ),
    _reading,
)
data_or_random = apply(
    click.option("--data", help="As for `qtool quantize`; by default random inputs are made."),
    _reading,
)
batch_size = click.option(
    "--batch-size", default=32, show_default=True, type=COUNT, help="For data files."
)
dynamic = click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:DIM[=NAME]",
    help="A dimension that varies at run time; by default dimension 0 of every input.",
)


def load_model(source: str, weights: Path | None) -> Any:
    """The model behind MODEL, --weights and --task; data of the command is read for it."""
    from qtool.frontends.load_model import load_model as load

    found = load(source, weights, _kept_value("task"))
    click.get_current_context().meta[f"{__name__}.model"] = (source, found)
    return found


def beside_of(source: str, model: Any) -> Callable[[Path], Any] | None:
    """What writes what goes with a model's file: with a decoder's what onnxruntime-genai needs."""
    from qtool.frontends.huggingface.causal_decoder import Decoder
    from qtool.frontends.huggingface.genai_config import write_beside

    return partial(write_beside, model, Path(source)) if isinstance(model, Decoder) else None


def empty_model(source: Path) -> str | None:
    """The folder or ONNX file behind MODEL is looked at without its weights, so that data of the
    command is read for it; the task that --task names."""
    from qtool.frontends.huggingface.meta_init import empty_folder
    from qtool.frontends.onnx import map_onnx

    task: str | None = _kept_value("task")
    found = map_onnx(source) if source.suffix == ".onnx" else empty_folder(source, task)
    click.get_current_context().meta[f"{__name__}.model"] = (str(source), found)
    return task


def load_data(source: str, batch_size: int, labels: str | None = None) -> Iterable[Any]:
    """The iterable behind --data, without the array of its file that --labels names.

    Raises:
        DataError: there is none.
    """
    from qtool.frontends.data.load_data import load_data as load

    name, model = _kept_value("model") or (None, None)
    inside = labels is not None and not Path(labels).is_file()
    found = load(
        source,
        batch_size,
        model=model,
        folder=_kept_value("processor") or (name if name and Path(name).is_dir() else None),
        transform=_kept_value("transform"),
        max_length=_kept_value("max_length"),
        padded=bool(_kept_value("padded")),
        unreadable=_kept_value("unreadable") or 0.0,
        without=(labels,) if inside and labels else (),
    )
    if unread := getattr(found, "unread", ()):
        click.echo(f"left out {len(unread)} samples of {source}: {'; '.join(unread)}", err=True)
    return found


def load_model_and_data(
    source: str, weights: Path | None, data: str, shape: str | None, batch_size: int
) -> tuple[Any, Iterable[Any] | None]:
    """The model, and the batches behind --data, or None; then a model of known sizes.

    Raises:
        DataError: there is no such data.
    """
    model = load_model(source, weights)
    if shape is not None and data != NO_DATA:
        raise click.BadParameter(f"is for --data {NO_DATA}", param_hint="--shape")
    if data != NO_DATA:
        batches = load_data(data, batch_size)
        return model, _with_cache(model, data, batch_size, batches)
    if shape is None:
        return model, None
    import torch

    from qtool import capture_model

    return capture_model(model, torch.zeros(2, *_sizes(shape))), None


def _with_cache(model: Any, data: str, batch_size: int, batches: Iterable[Any]) -> Iterable[Any]:
    """The batches for the cache that --cache asks for."""
    if _kept_value("cache") != "int8":
        return batches
    from qtool.frontends.huggingface.causal_decoder import Decoder

    if not isinstance(model, Decoder):
        raise click.BadParameter("is for --task text-generation-with-past", param_hint="--cache")
    model.hold_in_int8(batches)
    return load_data(data, batch_size)


def _sizes(text: str) -> list[int]:
    if not all(part.isdecimal() and 0 < int(part[:20]) <= MOST for part in text.split(",")):
        raise click.BadParameter(f"'{text}' is not SIZE,SIZE,...", param_hint="--shape")
    return [int(part) for part in text.split(",")]


def share_of(batches: Iterable[Any]) -> Iterable[Any]:
    """The share of this process in data that all ranks have (see `qtool.distributed.Share`).

    Raises:
        RanksError: they do not have the same data.
    """
    from qtool.distributed import DataShard, current, data_name

    ranks = current()
    if not ranks.is_distributed:
        return batches
    ranks.check_equal("other data", data_name(batches))
    return DataShard(batches, ranks.rank, ranks.size)


def load_labels(key: str | None, data: str, batches: Iterable[Any]) -> Any:
    """The array behind --labels; without the option what the data says itself, or None.

    Raises:
        DataError: there is none.
    """
    from qtool.core.data.array_files import find_labels

    return getattr(batches, "labels", None) if key is None else find_labels(key, Path(data))


def dynamic_of(
    given: tuple[str, ...], batches: Iterable[Any] | None
) -> Mapping[str, Mapping[int, str]] | None:
    """What --dynamic says; without the option what the data says of its sizes."""
    return parse_dynamic(given) or getattr(batches, "dynamic", None)


def parse_dynamic(given: tuple[str, ...]) -> dict[str, dict[int, str]] | None:
    """`x:0=batch`, `x:2` -> {"x": {0: "batch", 2: "x_dim2"}}."""
    found: dict[str, dict[int, str]] = {}
    for text in given:
        place, _, name = text.partition("=")
        key, _, axis = place.rpartition(":")
        if not key or not axis.isdecimal() or not axis.isascii() or len(axis) > 4:
            raise click.BadParameter(
                f"'{text}' is not INPUT:DIM or INPUT:DIM=NAME", param_hint="--dynamic"
            )
        found.setdefault(key, {})[int(axis)] = name or (
            "batch" if axis == "0" else f"{key}_dim{axis}"
        )
    return found or None
