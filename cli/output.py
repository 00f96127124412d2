"""Output of a command: its result as text or as JSON, and warnings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from qtool.cli import envelope
from qtool.cli.command import JSON, QUIET, VERBOSE
from qtool.cli.progress import logged_texts, meta
from rich.console import Console
from rich.text import Text

from qtool.core.number_texts import printable
from qtool.core.progress import length_of, stage, track_task
from qtool.core.records import to_json
from qtool.core.summary import Summary

if TYPE_CHECKING:
    from qtool.api.quantized_file import QuantizedFile

__all__ = [
    "exit_if_missed",
    "length_of",
    "say",
    "show",
    "show_file",
    "show_json",
    "show_report",
    "show_summary",
    "stage",
    "track_task",
    "warn",
]


def is_json() -> bool:
    return bool(meta().get(JSON))


def is_quiet() -> bool:
    return bool(meta().get(QUIET))


def is_verbose() -> bool:
    return bool(meta().get(VERBOSE))


def say(text: str) -> None:
    """Print a line of the result; nothing with -q."""
    if not is_quiet():
        _echo(text)


def warn(text: str) -> None:
    """Print a warning, also with -q and with --json."""
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(Text(printable(text), style="yellow"), highlight=False, soft_wrap=True)
    else:
        _echo(text, err=True)


def show(result: Any, title: object = None) -> None:
    """Print a result of the library: as JSON, or its tables and then its summary.

    Args:
        result: has `summary()`; `table()`, which is always printed, or `details()`, for -v.
        title: heading of the summary, such as the file; by default that of the result.
    """
    if is_json():
        show_json(result)
        return
    if hasattr(result, "table") and (table := result.table()):
        say(f"{table}\n")
    summary = result.summary() if title is None else result.summary(str(title))
    show_summary(summary, result.details() if hasattr(result, "details") else "")


def show_report(report: Any, folder: Path | None = None, title: object = None) -> None:
    """Print a report: with several models a table of them, then the summary.

    Args:
        report: a `Report` or an `Evaluation`.
        folder: where it was written; None if it was not.
        title: as for `show`.
    """
    if is_json():
        show_json(report)
        return
    several = len(report.models) > 2
    if several:
        say(f"{report.table()}\n")
    summary = report.summary(None if title is None else str(title))
    if folder is not None:
        summary = replace(summary, rows=(*summary.rows, ("report", str(folder / "report.html"))))
    show_summary(summary, "" if several else report.table())


def show_summary(summary: Summary, details: str = "") -> None:
    """Print a result in a few lines, and with -v in full; warnings go to standard error.

    Notes that were printed as they were logged are left out.

    Args:
        summary: the few lines.
        details: the rest; empty if the summary has everything.
    """
    known = logged_texts()
    notes = [n for n in summary.notes if not known & {f"warning: {n}", f"note: {n}"}]
    summary = replace(summary, notes=tuple(notes))
    for warning in summary.warnings:
        warn(warning)
    if is_quiet():
        return
    console = Console()
    if console.is_terminal:
        console.print(_styled(summary), highlight=False, soft_wrap=True)
    else:
        lines = [f"  {label}  {text}" for label, text in summary.lines()]
        _echo("\n".join([f"{summary.title}  {summary.text}".rstrip(), *lines]))
    if is_verbose():
        shown = {text for label, text in summary.lines() if label == "note"}
        notes = [f"note: {note}" for note in summary.notes if note not in shown]
        _echo("".join(f"\n{line}" for line in filter(None, [details, *notes])))
    elif details and console.is_terminal:
        console.print("  details: -v", style="dim", highlight=False)


def show_file(file: QuantizedFile, source: str) -> None:
    """Print what was measured on a file that was written, and exit with 1 if it misses a goal.

    Args:
        source: value of MODEL, for the names of files that stayed.
    """
    for kept in file.kept:
        warn(f"{kept} differs from {Path(source) / kept.name} and stays as it is")
    if is_json():
        from qtool.cli.documents import Blocks, Outcome, WrittenFile

        result = file.verification
        notes = (*file.notes, *result.notes)
        outcome = Outcome(file.passed and result.passed)
        parts = WrittenFile(file.path), file, Blocks(file.blocks)
        show_json(*parts, replace(result, notes=notes), outcome)
    else:
        show_summary(file.summary(), file.details())
    for sentence in file.warnings:
        warn(sentence)
    if not file.passed:
        raise SystemExit(1)


def _styled(summary: Summary) -> Text:
    title, line = printable(summary.title), printable(summary.text)
    text = Text.assemble((title, "bold green"), f"  {line}".rstrip())
    for label, figures in summary.lines():
        text.append(f"\n  {printable(label)}  ", "yellow" if label == "note" else "dim")
        text.append(printable(figures))
    return text


def _echo(text: str, err: bool = False) -> None:
    click.echo(printable(text), err=err)


def exit_if_missed(report: Any, fail_on: str | None = None) -> None:
    """Exit with 1 and the reason if a goal is missed, or a verdict is one of --fail-on.

    Args:
        report: a `Report`.
        fail_on: "bad" for "Do not ship", "review" for that and "Needs review".
    """
    refused = {None: (), "bad": ("bad",), "review": ("look", "bad")}[fail_on]
    failed = False
    for model in report.models:
        for check in () if model.verdict is None else model.verdict.checks:
            if check.missed:
                _echo(f"goal missed by {model.name}: {check.text}", err=True)
                failed = True
        if model.verdict is not None and str(model.verdict.level) in refused:
            _echo(f"--fail-on {fail_on}: {model.name}: {model.verdict.headline}", err=True)
            failed = True
    if failed:
        raise SystemExit(1)


def show_json(*parts: Any) -> None:
    """Print one JSON document: the fields of `Envelope`, then those of each part.

    Args:
        parts: dataclasses of `qtool.cli.document_table.documents`.
    """
    context = click.get_current_context()
    fields = envelope(context.command.name or "")
    for part in parts:
        fields |= to_json(part)
    click.echo(json.dumps(fields, indent=2, allow_nan=False))
