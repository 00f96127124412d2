"""The command line: one file per command, each calling one library function.

Exit codes: 0 done; 1 a goal the user set was missed; 2 a user error, in one sentence; 130 and 143
ended by SIGINT or SIGTERM; 141 nobody reads the output any more.
"""

from __future__ import annotations

import json
import signal
from importlib import import_module
from typing import Any

import click
from qtool.cli.distributed import as_one, begins, ends
from qtool.cli.shutdown import ended_in_order

__all__ = ["JSON", "main"]

JSON = "qtool.json"  # in a context's meta: whether the command was asked for JSON

COMMANDS = (
    "bench",
    "blockwise",
    "calibrate",
    "compare",
    "convert",
    "emulators",
    "evaluate",
    "explain",
    "inspect",
    "merge",
    "quantize",
    "report",
    "tune",
    "verify",
)


class _Group(click.Group):
    """Commands are imported when they are called: `qtool --help` does not wait for torch.

    Errors meant for the user are printed in one sentence, without a traceback.
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
        found: click.Command = import_module(f"qtool.cli.{cmd_name}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        begins(name or "")
        return name, found, rest

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        """click's own, of which an interrupt beside `invoke` is 1."""
        try:
            found = super().main(*args, standalone_mode=False, **kwargs)
        except click.Abort as error:
            raise SystemExit(128 + signal.SIGINT) from error
        except click.ClickException as error:
            if not standalone_mode:
                raise
            error.show()
            raise SystemExit(error.exit_code) from error
        if not standalone_mode:
            return found
        raise SystemExit(found or 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with ended_in_order():  # what is imported takes its time, in which a signal may come
                from qtool.cli.output import progress

                from qtool.core.progress import show_progress

                with show_progress(progress):
                    return as_one(lambda: super(_Group, self).invoke(ctx))
        except click.ClickException as error:
            if ctx.meta[JSON]:
                told = {"message": error.format_message(), "exit_code": error.exit_code}
                cause = error.__cause__ or error
                click.echo(json.dumps({"error": {"type": type(cause).__name__, **told}}))
            raise
        finally:
            ends()


HELP = {
    "bench": "Time ONNX files in turns, with intervals.",
    "blockwise": "Quantize a model larger than memory, block by block; goes on after a kill.",
    "calibrate": "Observe a model's tensors on data; writes a calibration file.",
    "compare": "Put several ONNX files side by side: accuracy, speed, size.",
    "convert": "Write the int8 ONNX model of a calibrated model.",
    "emulators": "Say which other processors can be emulated, or install what that needs.",
    "evaluate": "Compare an int8 file with its float model on data.",
    "explain": "Say which layers of an int8 file changed an answer.",
    "inspect": "Show what a model, a calibration or an ONNX file holds.",
    "merge": "Merge calibrations made on different parts of the data.",
    "quantize": "Calibrate and convert in one step.",
    "report": "Say whether to ship a model: accuracy, speed, and which layer hurts.",
    "tune": "Search the fastest int8 file that loses no more than it may.",
    "verify": "Run an int8 file in the integer engine and in ONNX Runtime, and compare every bit; "
    "or on other processors.",
}


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="A module of yours, imported first: what it registers is known to the command.",
)
@click.version_option(package_name="qtool")
def main(imports: tuple[str, ...]) -> None:
    """A trained PyTorch model in, a verified int8 ONNX model out."""
    if imports:
        from qtool.core.errors import CaptureError
        from qtool.frontends.named_objects import import_object

        for name in imports:
            import_object(name, CaptureError)
