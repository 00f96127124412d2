"""The click class of every command: grouped help, and the options that all commands have.

click's own classes are enough for this; a library such as cloup or rich-click would be one more
dependency for the sixty lines below.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import Any

import click

__all__ = ["JSON", "LOGGED", "QUIET", "VERBOSE", "Command", "heading"]

JSON = "qtool.json"
VERBOSE, QUIET = "qtool.verbose", "qtool.quiet"
LOGGED = "qtool.logged"
_HELP_ALL = "qtool.help_all"
"""Keys in a context's meta."""
_SIMILAR = 0.75  # ratio of equal letters

GROUPS = {
    "Model": "model weights fix noise_input task tokenizer calibration scales against reference "
    "other_model",
    "Data": "data column shape samples eval_data labels classes transform batch_size dynamic",
    "Precision": "target mode accuracy recover ignore output_kind observer recipe choices "
    "group memory",
    "Goals": "min_coverage min_sqnr min_speedup max_drop max_size smallest confidence fail_on",
    "Measurement": "metric evaluate minimize lower_is_better batch_sizes threads runtime seconds "
    "precision budget evaluations layer_samples cpu timeout",
    "Texts and recordings": "processor max_length pad_to_max_length state",
    "Language models": "attention cache logits",
    "Sampling": "tokens temperature top_k top_p seed",
    "Output": "output_ format format_ layout interface batch external_data float_file "
    "save_recipe junit badge markdown provenance "
    "as_json verbose quiet help help_all",
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
}
"""Parameters that --help shows of commands with more than `MANY` options; --help-all shows all."""
MANY = 15


def stored(key: str) -> Any:
    """Return the callback of an option that `qtool.cli.output` reads where it prints."""

    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:  # click's signature
        ctx.meta[key] = value

    return store


def _common() -> list[click.Parameter]:
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=stored(VERBOSE),
            help="Print all details of the result, and each stage; -vv also logs nested stages.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=stored(QUIET),
            help="Print errors and warnings only.",
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


class Command(click.Command):
    """A command whose help lists options by topic, with -v and -q."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [*_common(), _help_all()]
        for parameter in self.params:
            if isinstance(parameter.type, click.IntRange | click.FloatRange) and (
                not parameter.metavar and parameter.name != "verbose"
            ):
                parameter.metavar = "NUMBER"  # click writes "INTEGER RANGE"

    def invoke(self, ctx: click.Context) -> Any:
        from qtool.cli.progress import log_to_stderr

        with log_to_stderr():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # click has worse ones: --recipe for --device
            names = error.option_name, error.possibilities or ()
            error.possibilities = difflib.get_close_matches(*names, 1, _SIMILAR)
            raise
        except click.MissingParameter as error:
            if isinstance(error.param, click.Option):
                error.message = (error.param.help or "").partition(". ")[0].rstrip(".") + "."
            raise
        except click.BadParameter as error:
            error.message = error.message.replace("a valid integer range", "a whole number")
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
