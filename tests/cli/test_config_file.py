"""Options from a file: the command line wins, paths are relative to the file, typos are refused."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from qtool.cli import main
from qtool.cli.command import Command
from qtool.cli.config_file import parameters_of
from qtool.cli.source_options import Path_

from tests.cli.conftest import ROOT, Cli
from tests.quick_commands import commands

SEEN: dict[str, Any] = {}


@click.command("show", cls=Command)
@click.argument("model")
@click.argument("files", nargs=-1)
@click.option("--weights", type=Path_)
@click.option("-o", "--output", "output_", type=Path_, required=True)
@click.option("--min-sqnr", type=float)
@click.option("--batch-sizes", default="1")
@click.option("--dynamic", multiple=True)
@click.option("--smallest", is_flag=True)
def show(**values: Any) -> None:
    """Keep the values."""
    SEEN.clear()
    SEEN.update(values)


@click.group()
def group() -> None:
    """A group with one command."""


group.add_command(show)


def values_of(folder: Path, text: str, *arguments: str, name: str = "qtool.toml") -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    words = ["show", "--config", str(folder / name), *arguments]
    result = CliRunner().invoke(group, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(SEEN)


TEXT = """
model = "package.module:net"
weights = "w.safetensors"
[show]
output = "made/model.onnx"
min_sqnr = 40
batch-sizes = [1, 32]
dynamic = ["x:0", "y:1"]
smallest = true
files = ["a.onnx"]
"""


def test_every_kind_of_value(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert values_of(folder, TEXT) == {
        "model": "package.module:net",
        "files": ("a.onnx",),
        "weights": folder / "w.safetensors",
        "output_": folder / "made/model.onnx",
        "min_sqnr": 40.0,
        "batch_sizes": "1,32",
        "dynamic": ("x:0", "y:1"),
        "smallest": True,
    }


def test_the_command_line_wins(tmp_path: Path) -> None:
    values = values_of(tmp_path, TEXT, "other:net", "-o", "mine.onnx", "--min-sqnr", "3")
    assert values["model"] == "other:net"
    assert (values["output_"], values["min_sqnr"]) == (Path("mine.onnx"), 3.0)
    assert values["dynamic"] == ("x:0", "y:1")


def test_a_table_wins_over_keys_for_all_commands(tmp_path: Path) -> None:
    text = 'model = "a"\noutput = "all.onnx"\n[show]\noutput = "one.onnx"\n'
    assert values_of(tmp_path, text)["output_"] == tmp_path / "one.onnx"


def test_a_name_that_exists_in_the_folder_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").touch()
    text = json.dumps({"model": "net.pt2", "show": {"output": str(tmp_path / "x.onnx")}})
    values = values_of(tmp_path, text, name="qtool.json")
    assert values["model"] == str(tmp_path / "net.pt2")
    assert values["output_"] == tmp_path / "x.onnx"


REFUSED = {
    "a key": ('[quantize]\nmodell = "a"', "[quantize] unknown key 'modell'; did you mean 'model'?"),
    "a key for all": ("min-sqrn = 3", "unknown key 'min-sqrn'; did you mean 'min-sqnr'?"),
    "a key of another command": ('[bench]\nmodels = "a"', "[bench] unknown key 'models'"),
    "a command": ("[quantise]\n", "unknown command 'quantise'; did you mean 'quantize'?"),
    "a command line word": ('[quantize]\nconfig = "x"', "[quantize] unknown key 'config'"),
    "a table": ("[quantize]\ndata = {a = 1}", "data is {'a': 1}; give a text, a number"),
    "no TOML": ("[quantize", "not TOML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str, message: str, cli: Cli) -> None:
    Path("qtool.toml").write_text(text)
    said = cli.refuses("quantize", "m", "--data", "d", "-o", "x.onnx", "--config", "qtool.toml")
    assert said.startswith("qtool.toml: ")
    assert message in said


def test_other_files_are_refused(cli: Cli) -> None:
    words = ("quantize", "m", "--data", "d", "-o", "x.onnx", "--config")
    assert "none.toml: no such configuration file" in cli.refuses(*words, "none.toml")
    Path("qtool.yaml").touch()
    assert "must be a .toml or .json file" in cli.refuses(*words, "qtool.yaml")
    Path("qtool.json").write_text("[1]")
    assert "a configuration is a table of options" in cli.refuses(*words, "qtool.json")


def test_values_are_checked_as_on_the_command_line(cli: Cli) -> None:
    Path("qtool.toml").write_text('[quantize]\nmode = "statik"')
    said = cli.refuses("quantize", "m", "--data", "d", "-o", "x.onnx", "--config", "qtool.toml")
    assert "statik" in said
    Path("qtool.toml").write_text("[quantize]\nmin-sqnr = true\nmode = 'static'")
    said = cli.refuses("quantize", "m", "--data", "d", "-o", "x.onnx", "--config", "qtool.toml")
    assert "'True' is not a valid float" in said


def test_a_file_that_is_not_named_is_not_read(cli: Cli) -> None:
    Path("qtool.toml").write_text("[quantise]")
    assert "qtool.toml" not in cli.refuses("quantize", "m:f", "--data", "d", "-o", "x.onnx")


@pytest.mark.parametrize("command", commands())
def test_keys_of_a_command_are_one_each(command: str) -> None:
    parameters = main.get_command(click.Context(main), command).params
    keys = parameters_of(main.get_command(click.Context(main), command))
    named = {p.name for p in parameters} - {"help_all", "config", "verbose", "quiet", "log_level"}
    assert {p.name for p in keys.values()} == named


def test_the_example_runs(cli: Cli) -> None:
    words = ("quantize", "--config", "examples/digits/qtool.toml", "-o", "x.onnx", "--seconds", "0")
    cli(*words)
    (ROOT / "examples/digits/qtool.toml").read_text("utf-8")
    assert Path("x.onnx").is_file()
