"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from qtool.cli.number_types import DAY, Real, listed
from qtool.cli.sources import F, Path_, load_labels

from qtool.evaluation.options import Goals, ReportOptions


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
    from qtool.planning.targets import TARGETS

    return TARGETS


def _formats() -> Iterable[str]:
    from qtool.planning.targets import TARGETS

    return dict.fromkeys(f for t in TARGETS.values() for f in t.file.formats)


def _accuracies() -> Iterable[str]:
    from qtool.planning.recipe import ACCURACIES

    return ACCURACIES


def _modes() -> Iterable[str]:
    from qtool.planning.recipe import MODES

    return MODES


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _report_folder(
    ctx: click.Context, param: click.Parameter, value: Path | None
) -> Path | None:  # click's signature
    """Refused before the work, and before torch is loaded."""
    from qtool.evaluation.report.page.folder import check_folder

    if value is not None:
        check_folder(value)
    return value


# --- models, data, conversion ------------------------------------------------------------------


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
    help="How much the conversion does to recover what rounding costs; by default balanced.",
)
recover = click.option(
    "--recover",
    metavar="STEP,...",
    default=None,
    help="The steps that it takes for that, and no others. See docs/recipes.md.",
)
output = click.option(
    "-o", "--output", "output_", required=True, type=Path_, help="The file to write."
)
json_ = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
cpu = click.option(
    "--cpu",
    metavar="NAME,...",
    help="Run the file on these processors by emulation: haswell, nehalem, cortex-a53, "
    "neoverse-n1, neoverse-n2, wasm, or all. See docs/other-cpus.md.",
)
min_coverage = click.option(
    "--min-coverage",
    type=Real(0, 1),
    help="Exit with 1 if a smaller share of the MACs runs in integer kernels.",
)
min_sqnr = click.option(
    "--min-sqnr",
    type=Real(),
    help="Exit with 1 if an output has a smaller signal-to-noise ratio to the float model's (dB).",
)
timing = click.option(
    "--timing",
    default=1.0,
    show_default=True,
    type=Real(min=0, max=DAY),
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
    callback=listed,
    help="To time.",
)
threads = click.option(
    "--threads",
    default=_listed(ReportOptions.threads),
    show_default=True,
    callback=listed,
    help="To time with.",
)
seconds = click.option(
    "--seconds",
    default=ReportOptions.seconds,
    show_default=True,
    type=Real(min=0, max=DAY, min_open=True),
    help="For each timing.",
)
max_drop = click.option(
    "--max-drop",
    type=Real(),
    help="Exit with 1 if the first metric loses more (0.01 of top-1 is one point).",
)
min_speedup = click.option(
    "--min-speedup",
    type=Real(min=0, min_open=True),
    help="Exit with 1 if the speed-up is smaller.",
)


# --- what the values stand for -----------------------------------------------------------------


def names(text: str | None) -> list[str] | None:
    """The names in a list with commas; None of nothing."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def load_metrics(source: str | None) -> Callable[[Any], Any] | None:
    """The function behind --eval.

    Raises:
        DataError: it cannot be imported, or is no function.
    """
    from qtool.core.errors import DataError
    from qtool.frontends.named_objects import import_object

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
