"""Progress: one line on a terminal, events for machines, nothing else."""

from __future__ import annotations

import io
import json
from typing import Any

import click
import pytest
from qtool.cli import JSON, output
from rich.console import Console

from tests.cli.conftest import DIGITS, Cli

DATA = ("--data", "calib_data/digits")


def nested() -> None:
    for item in output.progress("outer", None)([1, 2]):
        for _ in output.progress("inner", 3)(iter(range(3))):
            assert item
            if output._tasks:
                bar = output._tasks[0][0]
                shown.append([t.description for t in bar.tasks if t.visible])
    assert output._tasks == []


shown: list[Any] = []


def test_on_a_terminal_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(output, "errors", Console(file=text, force_terminal=True, width=100))
    shown.clear()
    nested()
    assert shown == [["inner"]] * 6
    assert "left" in text.getvalue()


def test_elsewhere_there_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown.clear()
    nested()
    assert (capsys.readouterr().err, shown) == ("", [])


def test_with_json_there_are_events(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "EVENT_SECONDS", 0)
    with click.Context(click.Command("any")) as context:
        context.meta[JSON] = True
        list(output.progress("work", 3)(iter(range(3))))
        list(output.progress("more", None)(iter(range(1))))
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(e["step"], e["done"], e["total"]) for e in events] == [
        *(("work", n, 3) for n in range(4)),
        *(("more", n, None) for n in (0, 1, 1)),
    ]
    assert {e["event"] for e in events} == {"progress"}
    assert [e["left"] is None for e in events] == [True, False, False, False, True, True, True]
    assert events[3]["left"] == 0


def test_every_long_step_of_a_command_tells(cli: Cli) -> None:
    out = str(cli.folder / "a.onnx")
    found = cli("quantize", *DIGITS, *DATA, "-o", out, "--json", "--accuracy", "balanced")
    assert json.loads(found.stdout)["file"] == out
    steps = [json.loads(line)["step"] for line in found.stderr.splitlines()]
    named = ("calibrating", "solve", "gptq", "node by node", "exporting and verifying", "timing")
    assert set(named) <= set(steps)
    assert steps.index("calibrating") < steps.index("solve") < steps.index("timing")
