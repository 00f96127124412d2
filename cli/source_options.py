"""Options that name the model and the data of a command, and say how the model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from qtool.core.downloads import local_model
from qtool.core.errors import QtoolError
from qtool.core.option_records import OptionRecord, option
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
    """A model file, or the folder of one."""

    def convert(self, value: _Name, param: click.Parameter | None, ctx: _Context) -> Any:
        try:
            return model_file(super().convert(value, param, ctx))
        except QtoolError as error:
            self.fail(str(error), param, ctx)


Path_ = _Path(path_type=Path)
ModelFile = _ModelFile(path_type=Path)
ExistingPath = _Path(path_type=Path, exists=True)


def apply(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several options into one decorator; the help lists them in this order."""

    def decorate(function: F) -> F:
        for each in reversed(options):
            function = each(function)
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


@dataclass(frozen=True)
class ModelOptions(OptionRecord):
    """How the model of a command is loaded.

    Attributes:
        weights: state dict of MODEL: .safetensors or .pt (loaded without running pickled code).
        fixed: make an input of an .onnx file a constant, such as sr=16000; an If on it becomes one
            of its branches. The written file has the input no more.
        noise_input: make the random numbers that MODEL draws an input of the file; data need not
            have them.
        task: task of a transformers model folder: text-classification, feature-extraction, ...; by
            default the one that its weights were saved for.
        cache: type of the KV cache with --task text-generation-with-past; int8 has one scale per
            channel.
        attention: attention with --task text-generation-with-past: fused is one kernel per layer,
            for texts padded on the right; masked is slower and takes any padding.
        logits: tokens whose logits are returned with --task text-generation-with-past: generation
            needs those of the last one only.
    """

    weights: Path | None = option(None, kind="path")
    fixed: Mapping[str, Any] | None = option(
        None, "fix", kind="fixed", repeated=True, metavar="INPUT=VALUE"
    )
    noise_input: bool = option(False)
    task: str | None = option(None)
    cache: str = option("float", choices=("float", "int8"))
    attention: str = option("fused", choices=("fused", "masked"))
    logits: str = option("all", choices=("all", "last"))


MODEL = "weights fixed noise_input task"
"""Fields of `ModelOptions` that commands have."""
_DATA = (
    "Folder of image, sound or .npy/.npz files; a .npy, .npz, .txt, .csv, .parquet, .json or "
    ".jsonl file; or package.module:function that returns an iterable of batches."
)
data = click.option("--data", required=True, help=_DATA)


def data_unless(what: str) -> Callable[[F], F]:
    """Return the option of data that a command does not need for something."""
    return click.option("--data", help=f"{_DATA} Not needed for {what}.")


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
    )


data_or_random = click.option(
    "--data", help="Data as for `qtool quantize`; by default random inputs."
)
