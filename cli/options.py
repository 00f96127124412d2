"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from qtool.analysis.options import Goals, ReportOptions

F = TypeVar("F", bound=Callable[..., Any])

Path_ = click.Path(path_type=Path)


class OneOf(click.ParamType):
    """One of the names in a table of the library, which is loaded when it is needed.

    free: any text passes, since the library has more to say about it (options behind the name).
    """

    name = "name"

    def __init__(self, names: Callable[[], Iterable[str]], free: bool = False) -> None:
        self.names, self.free = names, free

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  # click's signature
        return f"[{'|'.join(self.names())}]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | None:
        if self.free:
            return str(value)
        found: str | None = click.Choice(list(self.names())).convert(value, param, ctx)
        return found


def _observers() -> Iterable[str]:
    from qtool.observers import OBSERVERS

    return [name for name, row in OBSERVERS.items() if row.estimate is not None]


def _targets() -> Iterable[str]:
    from qtool.targets import TARGETS

    return TARGETS


def _formats() -> Iterable[str]:
    from qtool.targets import TARGETS

    return dict.fromkeys(f for t in TARGETS.values() for f in t.file.formats)


def _accuracies() -> Iterable[str]:
    from qtool.recipe import ACCURACIES

    return ACCURACIES


def _modes() -> Iterable[str]:
    from qtool.recipe import MODES

    return MODES


def _numbers(
    ctx: click.Context, param: click.Parameter, value: str
) -> tuple[int, ...]:  # click's signature
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of numbers like 1,32")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _report_folder(
    ctx: click.Context, param: click.Parameter, value: Path | None
) -> Path | None:  # click's signature
    """Refused before the work, and before torch is loaded."""
    from qtool.page import check_folder

    if value is not None:
        check_folder(value)
    return value


# --- models, data, conversion ------------------------------------------------------------------


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
weights = apply(
    click.option(
        "--weights",
        type=Path_,
        help="State dict for MODEL: .safetensors, or .pt (read without unpickling code).",
    ),
    _kept(
        "task",
        "--task",
        help="For MODEL, a folder of transformers: text-classification, feature-extraction, ...; "
        "by default what its weights were saved with.",
    ),
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
    _kept("max_length", "--max-length", type=click.IntRange(1), help="Of texts, in tokens."),
    _kept(
        "padded",
        "--pad-to-max-length",
        is_flag=True,
        help="Pad every text to --max-length; by default to the longest of its batch.",
    ),
    _kept(
        "unreadable",
        "--unreadable",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 1),
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
data_or_random = apply(
    click.option("--data", help="As for `qtool quantize`; by default random inputs are made."),
    _reading,
)
batch_size = click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(1), help="For data files."
)
observer = click.option(
    "--observer",
    type=OneOf(_observers, free=True),
    help="What estimates ranges; with an option as in percentile:99.99.",
)
target = click.option(
    "--target", type=OneOf(_targets, free=True), help="The runtime to quantize for."
)
external_data = click.option(
    "--external-data",
    is_flag=True,
    help="Write the weights into a second file beside the model; beyond 2 GiB they always are.",
)
format_ = click.option(
    "--format",
    "format_",
    type=OneOf(_formats),
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
    type=OneOf(_modes),
    default=None,
    help="How everything is quantized that no rule of the recipe selects; by default static.",
)
accuracy = click.option(
    "--accuracy",
    type=OneOf(_accuracies),
    default=None,
    help="How much the conversion does to recover what rounding costs; by default fast.",
)
recover = click.option(
    "--recover",
    metavar="STEP,...",
    default=None,
    help="The steps that it takes for that, and no others. See docs/recipes.md.",
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
min_sqnr = click.option(
    "--min-sqnr",
    type=float,
    help="Exit with 1 if an output has a smaller signal-to-noise ratio to the float model's (dB).",
)
timing = click.option(
    "--timing",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds to time the file beside the float model, where the target is this machine's "
    "runtime; 0 leaves it out.",
)

# --- reports -----------------------------------------------------------------------------------


def report_folder(required: bool, text: str) -> Callable[[F], F]:
    """The option -o of a command that writes a report."""
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
    "--minimize",
    multiple=True,
    metavar="NAME",
    help="A metric of --eval of which lower is better.",
)
batch_sizes = click.option(
    "--batch-sizes",
    default=_listed(ReportOptions.batch_sizes),
    show_default=True,
    callback=_numbers,
    help="To time.",
)
threads = click.option(
    "--threads",
    default=_listed(ReportOptions.threads),
    show_default=True,
    callback=_numbers,
    help="To time with.",
)
seconds = click.option(
    "--seconds",
    default=ReportOptions.seconds,
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
    "--min-speedup", type=float, help="Exit with 1 if the speed-up is smaller."
)


# --- what the values stand for -----------------------------------------------------------------


def names(text: str | None) -> list[str] | None:
    """The names in a list with commas; None of nothing."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def load_model(source: str, weights: Path | None) -> Any:
    """The model behind MODEL, --weights and --task; data of the command is read for it."""
    from qtool.sources import load_model as load

    found = load(source, weights, _kept_value("task"))
    click.get_current_context().meta[f"{__name__}.model"] = (source, found)
    return found


def load_data(source: str, batch_size: int, labels: str | None = None) -> Iterable[Any]:
    """The iterable behind --data, without the array of its file that --labels names.

    Raises:
        DataError: there is none.
    """
    from qtool.sources import load_data as load

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


def load_labels(key: str | None, data: str, batches: Iterable[Any]) -> Any:
    """The array behind --labels; without the option what the data says itself, or None.

    Raises:
        DataError: there is none.
    """
    from qtool.data.array_files import find_labels

    return getattr(batches, "labels", None) if key is None else find_labels(key, Path(data))


def load_metrics(source: str | None) -> Callable[[Any], Any] | None:
    """The function behind --eval.

    Raises:
        DataError: it cannot be imported, or is no function.
    """
    from qtool.errors import DataError
    from qtool.sources import import_object

    if source is None:
        return None
    found = import_object(source, DataError)
    if not callable(found):
        raise DataError(f"{source} is a {type(found).__name__}, not a function")
    made: Callable[[Any], Any] = found
    return made


def asked(given: dict[str, Any], batches: Iterable[Any]) -> ReportOptions:
    """What the options of a report ask for; what a command has no option for is as by default."""
    same = ("batch_sizes", "threads", "seconds", "samples", "budget")
    return ReportOptions(
        labels=load_labels(given["labels"], given["data"], batches),
        function=load_metrics(given["evaluate"]),
        where=given["evaluate"] or "",
        lower_is_better=given["minimize"],
        goals=Goals(given["max_drop"], given["min_speedup"], given["min_coverage"]),
        **{name: given[name] for name in same if name in given},
    )


def dynamic_of(
    given: tuple[str, ...], batches: Iterable[Any]
) -> Mapping[str, Mapping[int, str]] | None:
    """What --dynamic says; without the option what the data says of its sizes."""
    return parse_dynamic(given) or getattr(batches, "dynamic", None)


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
