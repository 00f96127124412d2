"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

Path_ = click.Path(path_type=Path)

model = click.argument("model")
weights = click.option(
    "--weights",
    type=Path_,
    help="State dict for MODEL: .safetensors, or .pt (read without unpickling code).",
)
data = click.option(
    "--data",
    required=True,
    help="A folder of .npy/.npz files, one such file, or package.module:function that returns an "
    "iterable of batches.",
)
batch_size = click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(1), help="For data files."
)
observer = click.option(
    "--observer",
    default=None,
    help="minmax, percentile, moving_average or mse; with an option as in percentile:99.99.",
)
target = click.option("--target", default=None, help="The runtime to quantize for.")
format_ = click.option(
    "--format",
    "format_",
    type=click.Choice(["qdq", "qoperator"]),
    default="qdq",
    show_default=True,
    help="qdq: operators between Q and DQ. qoperator: QLinearConv and its kin.",
)
recipe = click.option(
    "--recipe",
    type=Path_,
    help="A .toml or .json file that says which layers are quantized how. See docs/recipes.md.",
)
mode = click.option(
    "--mode",
    type=click.Choice(["static", "dynamic", "weight-only", "weight-only-int4"]),
    default=None,
    help="How everything is quantized that no rule of the recipe speaks of; by default static.",
)
dynamic = click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:DIM[=NAME]",
    help="A dimension that varies at run time; by default dimension 0 of every input.",
)
output = click.option(
    "-o", "--output", "output_", required=True, type=Path_, help="The file to write."
)
json_ = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
min_coverage = click.option(
    "--min-coverage",
    type=click.FloatRange(0, 1),
    help="Exit with 1 if a smaller share of the MACs runs in integer kernels.",
)
timing = click.option(
    "--timing",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds to time the file beside the float model, where the target is this machine's "
    "runtime; 0 leaves it out.",
)


def apply(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order they are listed in the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def load_model(source: str, weights: Path | None) -> Any:
    """The model behind MODEL and --weights."""
    from qtool.capture import load_model as load

    return load(source, weights)


def load_data(source: str, batch_size: int, without: tuple[str, ...] = ()) -> Iterable[Any]:
    """The iterable behind --data.

    Raises:
        DataError: there is none.
    """
    from qtool.capture import import_object
    from qtool.data.array_files import ArrayFiles
    from qtool.errors import DataError

    if ":" in source and not Path(source).exists():
        made = import_object(source, DataError)
        try:
            found: Iterable[Any] = made() if callable(made) else made
        except Exception as error:
            raise DataError(
                f"calling {source}() failed: {type(error).__name__}: {error}"
            ) from error
        return found
    files = ArrayFiles(Path(source), batch_size, without)
    files.files()
    return files


def parse_dynamic(given: tuple[str, ...]) -> dict[str, dict[int, str]] | None:
    """`x:0=batch`, `x:2` -> {"x": {0: "batch", 2: "x_dim2"}}."""
    found: dict[str, dict[int, str]] = {}
    for text in given:
        place, _, name = text.partition("=")
        key, _, axis = place.rpartition(":")
        if not key or not axis.isdigit():
            raise click.BadParameter(
                f"'{text}' is not INPUT:DIM or INPUT:DIM=NAME", param_hint="--dynamic"
            )
        found.setdefault(key, {})[int(axis)] = name or (
            "batch" if axis == "0" else f"{key}_dim{axis}"
        )
    return found or None
