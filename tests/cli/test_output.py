"""Progress: one line on a terminal, events for machines, nothing else."""

import io
import json
import re
import threading
from dataclasses import dataclass
from typing import Any

import click
import pytest
from qtool.cli import output, progress
from qtool.cli.command import JSON, VERBOSE
from rich.console import Console
from rich.progress import Progress

from qtool.core.process_lock import silence_logging
from qtool.core.progress import show_progress, track, track_task
from qtool.core.summary import Summary
from tests.cli.conftest import DIGITS, Cli

DATA = ("--data", "calib_data/digits")


def nested() -> None:
    with show_progress(progress.display):
        for item in track("outer", [1, 2]):
            for _ in track("inner", iter(range(3)), 3):
                assert item
                if progress._bars.tasks:
                    shown.append([each.description for each in progress._bars.tasks])
    assert not progress._bars.tasks


shown: list[Any] = []


def run(title: str, count: int, total: int | None) -> None:
    with show_progress(progress.display):
        assert list(track(title, iter(range(count)), total)) == list(range(count))


def test_on_a_terminal_there_is_a_line_for_each_open_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "errors", console)
    monkeypatch.setattr(progress, "_bars", Progress(console=console, transient=True))
    shown.clear()
    nested()
    assert shown == [["outer", "inner"]] * 6
    assert "outer" in text.getvalue()


def test_elsewhere_long_stages_tell_how_far_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.clear()
    nested()
    assert (capsys.readouterr().err, shown) == ("", [])
    printed = threading.Event()
    write = progress._print_stages
    monkeypatch.setattr(progress, "_print_stages", lambda file: (write(file), printed.set()))
    monkeypatch.setattr(progress, "FIRST_LINE", 0)
    monkeypatch.setattr(progress, "NEXT_LINES", 0.01)
    with show_progress(progress.display):
        blocks = track("blocks", iter(range(3)), 3)
        assert [next(blocks), next(blocks)] == [0, 1]
        with track_task("capturing the model"), silence_logging():
            printed.clear()
            assert printed.wait(10)
        list(blocks)
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"blocks: 1 of 3 after .*s, .*s left; capturing the model: .*s so far", line
    )


@pytest.mark.parametrize(
    ("done", "total", "expected"),
    [
        (0, 3, r"work: \d s so far"),
        (1, 3, r"work: 1 of 3 after \d s, \d s left"),
        (3, None, r"work: 3 after \d s"),
        (3, 2, r"work: 3 after \d s"),
    ],
)
def test_what_is_known_of_a_stage(done: int, total: int | None, expected: str) -> None:
    assert re.fullmatch(expected, str(progress._Stage("work", total, done=done)))


def test_more_items_than_announced_leave_no_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVENT_SECONDS", 0)
    with click.Context(click.Command("any")) as context:
        context.meta[JSON] = True
        run("work", 3, 2)
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["done"], last["total"], last["left"]) == (3, None, None)


def test_every_stage_is_a_line_and_q_prints_nothing(cli: Cli) -> None:
    call = ("calibrate", *DIGITS, *DATA, "-o", "a.calib")
    plain = cli(*call)
    stages = ["loading the model", "capturing the model", "calibrating"]
    assert [line.partition(":")[0] for line in plain.stderr.splitlines()] == stages
    assert plain.stdout.startswith("a.calib  calibration\n  samples  ")
    quiet = cli(*call, "-q")
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert cli(*call, "-vv").stderr.count("\n") >= len(stages)


@dataclass(frozen=True)
class Result:
    def summary(self) -> Summary:
        return Summary("a.onnx", "int8", (("size", "1 KiB"),), ("zero",), ("warning: low",))

    def details(self) -> str:
        return "every node"


def test_notes_that_the_summary_shortens_are_among_the_details(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = tuple("abcdef")
    with click.Context(click.Command("any")) as context:
        context.meta[VERBOSE] = 1
        output.show_summary(Summary("a.onnx", "", (), notes))
    rest = "\nnote: d\nnote: e\nnote: f\n"
    assert capsys.readouterr().out.endswith(f"note  and 3 more notes\n{rest}")


def test_colour_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for no_color, bold in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=100)
        monkeypatch.setattr(output, "Console", lambda c=console, **_: c)
        output.show(Result())
        assert "size" in file.getvalue()
        assert ("\x1b[32m" in file.getvalue() or "32m" in file.getvalue()) is bold


def test_with_json_there_are_events(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVENT_SECONDS", 0)
    with click.Context(click.Command("any")) as context:
        context.meta[JSON] = True
        run("work", 3, 3)
        run("more", 1, None)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(e["step"], e["done"], e["total"]) for e in events] == [
        *(("work", n, 3) for n in range(4)),
        *(("more", n, None) for n in (0, 1, 1)),
    ]
    assert {e["event"] for e in events} == {"progress"}
    assert [e["left"] is None for e in events] == [True, False, False, False, True, True, True]
    assert events[3]["left"] == 0


def test_names_bring_no_control_sequences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of layers are those of other people's files."""
    summary = Summary("a\x1b[31m", "int8", (("layer", "b\x1b]0;c\x07"),), (), ("d\x1b[2J",))
    with click.Context(click.Command("any")) as context:
        context.meta[VERBOSE] = 1
        output.show_summary(summary, "e\x1b[31m")
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "b\\x1b]0;c\\x07" in printed.out
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, no_color=True)
    monkeypatch.setattr(output, "Console", lambda **_: console)
    with click.Context(click.Command("any")):
        output.show_summary(summary)
    assert "\x1b[31m" not in file.getvalue()
    assert "\x1b]0" not in file.getvalue()
