"""The click class of every command: grouped help, and the options that all commands have.

click's own classes are enough for this; a library such as cloup or rich-click would be one more
dependency for the sixty lines below.
"""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from qtool.cli.config_file import config_option

from qtool.core.path_arguments import QUANTIZE_CONFIG

__all__ = ["JSON", "LOGGED", "LOG_LEVEL", "QUIET", "VERBOSE", "Command", "heading"]

JSON = "qtool.json"
VERBOSE, QUIET, LOG_LEVEL = "qtool.verbose", "qtool.quiet", "qtool.log_level"
LOGGED = "qtool.logged"
_REPEATED, _HELP_ALL = "qtool.repeated", "qtool.help_all"
"""Keys in a context's meta."""
_SIMILAR = 0.75  # ratio of equal letters

GROUPS = {
    "Model": "model weights fix noise_input task tokenizer calibration scales against reference "
    "other_model",
    "Data": "data column shape samples sample calibration_data eval_data labels classes transform "
    "batch_size dynamic max_unreadable",
    "Precision": "target mode accuracy recover ignore output_kind observer recipe choices "
    "group memory",
    "Goals": "min_coverage min_sqnr min_speedup max_drop max_size smallest confidence fail_on "
    "min_token_agreement max_perplexity_increase",
    "Measurement": "metric evaluate minimize lower_is_better batch_sizes threads runtime seconds "
    "precision budget evaluations layer_samples most cpu timeout",
    "Texts and recordings": "processor max_length pad_to_max_length stride state",
    "Language models": "attention cache logits",
    "Sampling": "tokens temperature top_k top_p seed",
    "Output": "output_ format format_ layout interface batch external_data float_file archive page "
    "save_recipe repaired_file title junit badge markdown provenance document report "
    "config as_json verbose quiet log_level help help_all",
}
"""Heading in the help -> names of the parameters below it."""
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}
OTHER = "Other"
_USUAL = (
    "weights task model data labels eval_data target mode accuracy ignore recipe max_drop output_ "
    "as_json help help_all"
)
_USUAL_OF = {
    "convert": "calibration scales",
    "verify": "cpu",
    "gate": "against metric min_speedup junit",
    "evaluate": "evaluate runtime",
    "compare": "reference min_speedup",
    "bench": "batch_sizes threads runtime precision",
    "explain": "sample repaired_file",
}
"""Parameters that --help shows of commands with more than `MANY` options; --help-all shows all."""
MANY = 15

_MODELS = (".onnx", ".tflite", ".pt2")


def _store(key: str) -> Any:
    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # click's signature
        ctx.meta[key] = value

    return store


def _common() -> list[click.Parameter]:
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_store(VERBOSE),
            help="Print all details of the result, and each stage; -vv also logs nested stages.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_store(QUIET),
            help="Print errors and warnings only.",
        ),
        click.Option(
            ["--log-level"],
            type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
            expose_value=False,
            callback=_store(LOG_LEVEL),
            help="Print the log of qtool from this level on; by default what -v and -q set.",
        ),
    ]


def _help_all() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # click's signature
        if value and not ctx.resilient_parsing:
            ctx.meta[_HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show this message with all options, and exit.",
    )


def heading(text: str) -> str:
    """Return a heading of a help page, bold on a terminal (click removes the codes elsewhere)."""
    return text if os.environ.get("NO_COLOR") else click.style(text, bold=True)


def _commands_with(option: str) -> str:
    """Return which commands have an option, as "`qtool tune` has it"; "" if none has."""
    from qtool.cli import COMMANDS

    commands = {name: import_module(f"qtool.cli.{name}").command for name in COMMANDS}
    names = [
        f"`qtool {name}`"
        for name, command in commands.items()
        if any(option in parameter.opts for parameter in command.params)
    ]
    if len(names) < 2:
        return "".join(f"{name} has it" for name in names)
    return f"{', '.join(names[:-1])} and {names[-1]} have it"


def _problem(error: click.BadParameter) -> str:
    return error.format_message().rstrip(".")


class Command(click.Command):
    """A command whose help lists options by topic, with -v, -q and --log-level."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [config_option(), *_common(), _help_all()]
        for parameter in self.params:
            if isinstance(parameter.type, click.IntRange | click.FloatRange) and (
                not parameter.metavar and parameter.name != "verbose"
            ):
                parameter.metavar = "NUMBER"  # click writes "INTEGER RANGE"

    def invoke(self, ctx: click.Context) -> Any:
        from qtool.cli.progress import log_to_stderr

        from qtool.core.log import log_note

        with log_to_stderr():
            for name, values in ctx.meta.get(_REPEATED, {}).items():
                log_note(f"{name} is given {len(values)} times: the last one counts, {values[-1]}")
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)  # click removes them
        ctx.meta[_REPEATED] = _repeated(self.params, words)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = difflib.get_close_matches(
                error.option_name, error.possibilities or (), 1, _SIMILAR
            )
            error.possibilities = near  # click has worse ones: --recipe for --device
            if text := _commands_with(error.option_name):
                error.possibilities = None
                error.message = f"{error.message.rstrip('.')}; {text}"
            raise
        except (click.MissingParameter, click.BadParameter) as error:
            error.message = error.message.replace("a valid integer range", "a whole number")
            if line := _with_float_model(ctx.info_name or "", self.params, words):
                raise click.UsageError(f"{_problem(error)}; write `{line}`", ctx) from error
            if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
                error.message = (error.param.help or "").partition(". ")[0].rstrip(".") + "."
            raise
        except click.UsageError as error:
            if "extra argument" in error.message and (text := _meant(self.params, words)):
                error.message = f"{error.message}; {text}"
            raise

    def groups(self, ctx: click.Context) -> dict[str, list[click.Parameter]]:
        """Return heading -> options with a help text, in the order of `GROUPS`."""
        groups: dict[str, list[click.Parameter]] = {name: [] for name in (*GROUPS, OTHER)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                group = "Output" if "--help" in parameter.opts else OTHER
                groups[_GROUP_OF.get(parameter.name or "", group)].append(parameter)
        return {name: parameters for name, parameters in groups.items() if parameters}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options, after --help-all every one, by topic."""
        groups, usual = self.groups(ctx), f"{_USUAL} {_USUAL_OF.get(self.name or '', '')}".split()
        count = sum(map(len, groups.values()))
        if count > MANY and not ctx.meta.get(_HELP_ALL):
            groups = {n: [p for p in ps if _shown(p, usual)] for n, ps in groups.items()}
        left_out = count - sum(map(len, groups.values()))
        for name, parameters in groups.items():
            records = [parameter.get_help_record(ctx) for parameter in parameters]
            if records:
                with formatter.section(heading(name)):
                    formatter.write_dl([record for record in records if record is not None])
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"--help-all shows {left_out} more options.")


def _shown(parameter: click.Parameter, names: Sequence[str]) -> bool:
    return parameter.name in names or "--help" in parameter.opts


def _meant(parameters: Sequence[click.Parameter], args: Sequence[str]) -> str:
    """Return how to write the first argument too many, or "".

    Args:
        parameters: what the command takes.
        args: its command line.
    """
    options = _options(parameters)
    free = sum(isinstance(each, click.Argument) for each in parameters)
    for at, last, values in itertools.islice(_free(options, args), free, None):
        more = itertools.takewhile(lambda each: not each.startswith("-"), args[at:])
        return _sentence(options, last, [*values, *more])
    return ""


def _with_float_model(
    command: str, parameters: Sequence[click.Parameter], args: Sequence[str]
) -> str:
    """Return how to type a command line that has a file and its float model as free arguments.

    Args:
        command: name of the command.
        parameters: what it takes.
        args: its command line.

    Returns:
        The command line; "" for another one.
    """
    options = _options(parameters)
    names = [n for n in ("--model", "--against") if n in options and options[n].required]
    free = [args[at] for at, *_ in _free(options, args)]
    if not names or len(free) != 2 or any(each.split("=")[0] in names for each in args):
        return ""
    file, model = sorted(free, key=_place)
    rest = [each for each in args if each not in free]
    return shlex.join(["qtool", command, file, names[0], model, *rest])


def _place(path: str) -> int:
    """Return 0 for what `qtool quantize` surely wrote, 1 for what it may have, 2 for others."""
    suffix = Path(path).suffix.lower()
    if suffix == ".tflite" or (Path(path) / QUANTIZE_CONFIG).is_file():
        return 0
    return 1 if suffix == ".onnx" else 2


def _options(parameters: Sequence[click.Parameter]) -> dict[str, click.Parameter]:
    return {name: each for each in parameters for name in (*each.opts, *each.secondary_opts)}


def _free(
    options: dict[str, click.Parameter], args: Sequence[str]
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the index of each word that is neither an option nor its value, and the option before
    it, if that takes values, with its values."""
    last, values = "", list[str]()
    for at, arg in enumerate(args):
        if arg.startswith("-"):
            last, values = arg.partition("=")[0], arg.split("=", 1)[1:]
            continue
        takes = last in options and not getattr(options[last], "is_flag", False)
        if takes and not values:
            values.append(arg)
        else:
            yield at, last if takes else "", list(values)


def _repeated(parameters: Sequence[click.Parameter], args: Sequence[str]) -> dict[str, list[str]]:
    """Return option -> its values, for options that take one and have several different ones."""
    single = {
        name: each.opts[0]
        for each in parameters
        if isinstance(each, click.Option) and not (each.is_flag or each.count or each.multiple)
        for name in each.opts
    }
    values: dict[str, list[str]] = {}
    for arg, following in itertools.pairwise([*args, ""]):
        name, equals, value = arg.partition("=")
        if name in single:
            values.setdefault(single[name], []).append(value if equals else following)
    return {name: each for name, each in values.items() if len({*each}) > 1}


def _sentence(options: dict[str, click.Parameter], last: str, values: Sequence[str]) -> str:
    arg = values[-1]
    if "--json" in options and Path(arg).suffix.lower() == ".json":
        return f"--json prints: write > {arg} behind the command"
    if last and ",..." in (options[last].make_metavar(click.Context(click.Command(""))) or ""):
        return f"separate values with commas: {last} {','.join(values)}"
    if Path(arg).suffix.lower() in _MODELS:
        names = ("--model", "--against", "-o")
    else:
        names = ("--data",) if Path(arg).exists() else ()
    return next((f"write it as {name} {arg}" for name in names if name in options), "")
