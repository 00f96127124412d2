"""User errors: exit code 2, one sentence, no traceback, nothing written.

The table of wrong commands is tests/mistakes/commands.txt.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli

M = "tests.cli.models:"
UP = f"{M}transposed"


def quantize(model: str = UP, data: str = f"{M}images", output: str = "out.onnx") -> list[str]:
    return ["quantize", model, "--data", data, "-o", output]


def test_a_recipe_that_is_a_pipe_is_not_waited_for(folder: Cli) -> None:
    os.mkfifo(folder.folder / "pipe.toml")
    assert "not a regular file" in folder.refuses(*quantize(), "--recipe", "pipe.toml")


def test_a_report_into_a_circle_of_links(folder: Cli) -> None:
    (folder.folder / "circle").symlink_to("circle")
    arguments = ("report", UP, "--model", UP, "--data", f"{M}images", "-o", "circle")
    assert "Symlink loop" in folder.refuses(*arguments)


@pytest.fixture
def folder(cli: Cli) -> Cli:
    (cli.folder / "data.txt").write_text("no data")
    return cli


def test_without_an_error_the_same_call_writes(folder: Cli) -> None:
    folder(*quantize(output="new/out.onnx"))
    assert (folder.folder / "new" / "out.onnx").is_file()


def test_an_unwritable_output_is_said_before_the_work(folder: Cli) -> None:
    """Before the model is imported: a model that fails is not reached."""
    for command in ("calibrate", "quantize"):
        sentence = folder.refuses(
            command, f"{M}broken", "--data", f"{M}images", "-o", "data.txt/such/file"
        )
        assert "cannot write data.txt/such/file" in sentence


def test_a_failure_leaves_no_folder(folder: Cli) -> None:
    folder.refuses(*quantize(data=f"{M}not_a_number", output="new/and/out.onnx"))
    assert not (folder.folder / "new").exists()


def test_a_real_process_exits_with_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qtool", *quantize(data=f"{M}empty", output=f"{tmp_path}/o.onnx")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    said = "Error: the calibration data is empty; give at least one batch"
    assert done.stderr.splitlines()[-1] == said
    assert list(tmp_path.iterdir()) == []
