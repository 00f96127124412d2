"""The command line: one file per command.

A command parses its options, calls one function of the library, and saves and prints the result.

Exit codes: 0 success; 1 a goal was missed or a comparison failed; 2 user error, reported in one
sentence; 3 and 4 of `gate`: inconclusive, not comparable; 70 a bug in qtool, with its
traceback; 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM; 141 the output pipe was closed.
"""

from __future__ import annotations

import json
import os
import signal
from importlib import import_module
from typing import Any

import click
from qtool.cli.command import JSON, heading
from qtool.cli.distributed import check_same_command, ignore_sigterm, run_on_all_ranks
from qtool.cli.shutdown import clean_shutdown

from qtool.core.argument_names import options_in_messages
from qtool.core.option_names import unknown_name
from qtool.core.versions import version_of

__all__ = ["JSON", "SCHEMAS", "envelope", "main"]

SCHEMAS = {"convert": 2, "evaluate": 2, "quantize": 2, "tune": 3, "verify": 2}
"""Command -> number of the form of its document; 1 of others."""
"""Of the JSON documents, but for reports, which have a number of their own."""


GROUPS = {
    "Make a file": ("quantize", "calibrate", "merge", "convert"),
    "Judge it": ("verify", "gate", "evaluate", "report", "compare", "bench", "generate"),
    "Search": ("tune",),
    "Tools": ("inspect",),
}
"""Heading in the help -> commands below it, in the order of use."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


_THREADS = {"OMP_WAIT_POLICY": "passive"}
"""Variables of the threads of torch, set before it is imported. Threads that wait in a loop for the
next operator, as they do by default, double the CPU time of a conversion: its operators are small,
with Python between them."""


def envelope(command: str) -> dict[str, Any]:
    """Return the first keys of every JSON document: `qtool.cli.documents.Envelope`."""
    return {"schema": SCHEMAS.get(command, 1), "command": command, "qtool": version_of("qtool")}


class _Group(click.Group):
    """The group of all commands.

    A command is imported when it is called, so that `qtool --help` does not wait for torch. Errors
    of the library are printed in one sentence, without a traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"qtool.cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(unknown_name("command", args[0], COMMANDS))
        name, command, rest = super().resolve_command(ctx, args)
        check_same_command(name or "")
        return name, command, rest

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        width = max(map(len, COMMANDS))  # one column for all groups
        for title, names in GROUPS.items():
            with formatter.section(heading(title)):
                formatter.write_dl([(name.ljust(width), HELP[name]) for name in names])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """Run click's `main`, but exit with 130 when interrupted outside of `invoke`."""
        for name, value in _THREADS.items():
            os.environ.setdefault(name, value)
        try:
            code = super().main(*args, standalone_mode=False, **kwargs)
        except click.Abort as error:
            raise SystemExit(128 + signal.SIGINT) from error
        except click.ClickException as error:
            if not standalone_mode:
                raise
            error.show()
            raise SystemExit(error.exit_code) from error
        if not standalone_mode:
            return code
        raise SystemExit(code or 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with clean_shutdown():  # also during the imports, which take seconds
                from qtool.cli.progress import display

                from qtool.core.progress import show_progress

                with options_in_messages(), show_progress(display):
                    return run_on_all_ranks(lambda: super(_Group, self).invoke(ctx))
        except click.ClickException as error:
            if ctx.meta[JSON]:
                details = {"message": error.format_message(), "exit_code": error.exit_code}
                cause = error.__cause__ or error
                failure = {"error": {"type": type(cause).__name__, **details}}
                click.echo(json.dumps(envelope(ctx.invoked_subcommand or "") | failure))
            raise
        finally:
            ignore_sigterm()


HELP = {
    "bench": "Benchmark ONNX files against each other, with confidence intervals.",
    "calibrate": "Run a model on calibration data and write a calibration file.",
    "compare": "Compare ONNX files: accuracy, speed, size.",
    "convert": "Write the int8 ONNX model of a calibrated model.",
    "evaluate": "Compare an int8 file with its float model on data.",
    "gate": "Decide whether a quantized file may take the place of its float file, for CI.",
    "generate": "Continue a text with the ONNX file of a language model.",
    "inspect": "Show the contents of a calibration or an ONNX file.",
    "merge": "Merge calibrations made on different parts of the data.",
    "quantize": "Calibrate and convert in one step.",
    "report": "Write a report on whether to ship a model: accuracy, speed, sensitive layers.",
    "tune": "Find the fastest int8 model within an accuracy budget.",
    "verify": "Check that ONNX Runtime computes an int8 file bit for bit as expected, here or on "
    "other processors.",
}


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the version; read here, since finding it takes longer than the rest of --help."""
    if value and not ctx.resilient_parsing:
        from qtool.core.versions import own_version

        click.echo(f"qtool, version {own_version()}")
        ctx.exit()


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Import this Python module first, so that the command knows what it registers.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main(imports: tuple[str, ...]) -> None:
    """Quantize trained PyTorch models to verified int8 ONNX or TFLite files.

    Files are ONNX; with `--target tflite` or `tflite-micro`, a name that ends in .tflite makes a
    TFLite file. `qtool COMMAND --help` has an example of each command.
    """
    if imports:
        from qtool.core.errors import CaptureError
        from qtool.frontends.named_objects import import_object

        for name in imports:
            import_object(name, CaptureError)
