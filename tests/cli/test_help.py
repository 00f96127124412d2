"""Every command has help with an example, and the example works as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import Cli, commands


def test_the_group_lists_every_command(cli: Cli) -> None:
    text = cli("--help").output
    for command in commands():
        assert re.search(rf"^  {command}  +\S", text, re.MULTILINE)
    assert "qtool" in cli("--version").output
    assert cli("-h").output == text


@pytest.mark.parametrize("command", commands())
def test_help_says_what_every_option_is_for(command: str, cli: Cli) -> None:
    text = cli(command, "--help").output
    assert cli(command, "-h").output == text
    options = text.partition("Options:\n")[2]
    entries = re.split(r"\n  (?=-)", options)
    assert all(re.search(r"  +\S.*", e.partition(" ")[2]) for e in entries)
    assert "Example:" in text


SAYS = {
    "evaluate": "450 samples: int8 is",
    "inspect": "100.00 % of",
    "merge": "400 samples from 2 calibrations",
    "quantize": "100.00 % of",
    "verify": "200 samples",
}


@pytest.mark.parametrize("command", SAYS)
def test_the_example_works(command: str, sample: Cli) -> None:
    words = sample.example_of(command)
    for part in ("first.calib", "second.calib"):
        shutil.copy("digits.calib", part)
    text = sample(*words).stdout
    assert SAYS[command] in text
    if "-o" in words:
        assert (sample.folder / words[words.index("-o") + 1]).stat().st_size > 1000


def test_the_examples_of_calibrate_and_convert_work(made: dict[str, bytes]) -> None:
    assert sorted(made) == ["digits.calib", "digits.int8.onnx"]


WITHOUT_TORCH = """
import sys
from click.testing import CliRunner
from qtool.cli import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print(*sorted({"torch", "onnx", "onnxruntime"} & set(sys.modules)))
"""


def test_help_does_not_wait_for_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_old_names_of_options_still_work(cli: Cli) -> None:
    old = ("--most", "5", "--mended", "a.onnx", "--unreadable", "0.5")
    assert "cannot import m:f" in cli.refuses(
        "explain", "no.onnx", "--model", "m:f", "--data", "d", *old
    )
    text = cli("explain", "--help").output
    assert not any(re.search(rf"{name}\b", text) for name in old[::2])
