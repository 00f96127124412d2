"""Every command has help with an example, and the example works as it stands."""

import json
import re
import subprocess
import sys

import pytest
from qtool.cli.command import GROUPS, MANY

from qtool.core.versions import own_version
from tests.cli.conftest import DIGITS, Cli
from tests.quick_commands import commands


def test_the_group_lists_every_command(cli: Cli) -> None:
    text = cli("--help").output
    for command in commands():
        assert re.search(rf"^  {command}  +\S", text, re.MULTILINE)
    assert cli("--version").output == f"qtool, version {own_version()}\n"
    assert cli("-h").output == text


@pytest.mark.parametrize("command", commands())
def test_help_says_what_every_option_is_for(command: str, cli: Cli) -> None:
    short, text = cli(command, "--help").output, cli(command, "--help-all").output
    assert cli(command, "-h").output == short
    shown, every = (len(re.findall(r"^  -", each, re.MULTILINE)) for each in (short, text))
    assert shown == every <= MANY or shown <= MANY < every
    assert (f"--help-all shows {every - shown} more options" in short) == (shown < every)
    groups = re.findall(r"^([A-Z][\w ]+):\n((?:  .+\n)+)", text, re.MULTILINE)
    assert [name for name, _ in groups] == [name for name in GROUPS if f"\n{name}:\n" in text]
    for _, options in groups:
        entries = re.split(r"\n  (?=-)", options)
        assert all(re.search(r"  +\S.*", e.partition(" ")[2]) for e in entries)
    assert "Example:" in text
    assert not re.search(r"RANGE|None|docs/|^Other:", text, re.MULTILINE)


def test_the_examples_of_calibrate_and_convert_work(made: dict[str, bytes]) -> None:
    assert sorted(made) == ["digits.calib", "digits.int8.onnx"]


WITHOUT_TORCH = """
import json
import sys
from click.testing import CliRunner
from qtool.cli import main
for words, code, said in json.load(sys.stdin):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, (words, result.output)
    assert said in result.output, (words, result.output)
print(*sorted({"torch", "onnx", "onnxruntime"} & set(sys.modules)))
"""


MODEL = ["quantize", "m:f", "--data", "d", "-o", "x.onnx"]
TYPOS = {
    "quantise": (["quantise"], "did you mean 'quantize'?"),
    "target": ([*MODEL, "--target", "onnxrutime"], "did you mean 'onnxruntime'?"),
    "mode": ([*MODEL, "--mode", "weights-only"], "did you mean 'weight-only'?"),
    "observer": ([*MODEL, "--observer", "percentil:99.9"], "did you mean 'percentile'?"),
    "recover": ([*MODEL, "--recover", "gptq,smooth-qant"], "did you mean 'smooth-quant'?"),
    "accuracy": ([*MODEL, "--accuracy", "ballanced"], "did you mean 'balanced'?"),
    "format": ([*MODEL, "--format", "qoperater"], "did you mean 'qoperator'?"),
    "choices": (
        ["tune", *MODEL[1:], "--eval-data", "d", "--choices", "statc"],
        "did you mean 'static'?",
    ),
    "recipe": ([*MODEL, "--recipe", "no.toml"], "no.toml: no such recipe file"),
    "option": ([*MODEL, "--tarket", "qnn"], "--target"),
}


def test_neither_help_nor_a_misspelled_name_waits_for_torch() -> None:
    calls = [(["--help"], 0, ""), *((words, 2, said) for words, said in TYPOS.values())]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_names_of_imported_modules_are_left_to_the_library(cli: Cli) -> None:
    words = ("quantize", *DIGITS, "--data", "calib_data/digits", "-o", "x.onnx", "--target", "its")
    sentence = cli.refuses("--import", "tests.cli.models", *words)
    assert sentence.startswith("unknown target 'its'; there are: onnxruntime")
