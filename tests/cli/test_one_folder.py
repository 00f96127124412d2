"""A runtime and a format of files are one folder: every command takes them, no other file changes.

The folder is tests/backends/toy.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qtool
from qtool.backends.formats import open_file
from qtool.backends.openvino.runtime import OPENVINO
from qtool.core.errors import PlanError
from qtool.planning.targets import TARGETS
from qtool.planning.targets.base import FileForm
from qtool.plugins.tflite.format import FORMAT
from tests.backends.onnx.operators.outside import restored
from tests.cli.conftest import DIGITS, Cli, workplace

TARGET = replace(TARGETS["openvino"], name="new")
TOY = ("--import", "tests.backends.toy")
DATA = ("--data", "examples/digits/eval.npz")
JUDGED = ("--model", *DIGITS, *DATA, "--labels", "labels")
TUNED = ("--eval-data", "examples/digits/eval.npz", "--labels", "labels", "--budget", "1")
CALIBRATION = ("--data", "calib_data/digits")
COMMANDS: dict[str, tuple[str, ...]] = {
    "verify": ("digits.toy", *DATA),
    "inspect": ("digits.toy",),
    "evaluate": ("digits.toy", *JUDGED),
    "compare": (
        "float.toy",
        "digits.toy",
        *DATA,
        "--labels",
        "labels",
        "-o",
        "page",
        "--seconds",
        "0.2",
    ),
    "report": ("digits.toy", *JUDGED, "-o", "page", "--seconds", "0.2", "--layer-samples", "4"),
    "bench": ("float.toy", "digits.toy", "--seconds", "0.2", "--precision", "0.9"),
    "tune": (*DIGITS, *CALIBRATION, *TUNED, "--target", "toy", "-o", "tuned.toy"),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A folder with a float file and a quantized one."""
    with restored(), pytest.MonkeyPatch.context() as patch:
        cli = workplace(tmp_path_factory.mktemp("toy"), patch)
        cli(*TOY, "quantize", *DIGITS, *CALIBRATION, "--target", "toy", "-o", "digits.toy")
        network = qtool.load_model(DIGITS[0], Path(DIGITS[2]))
        batch = np.load("examples/digits/eval.npz")["x"][:2]
        qtool.capture_model(network, batch).export_float("float.toy")
        yield cli


def test_a_file_is_its_own(cli: Cli) -> None:
    file = open_file(cli.folder / "digits.toy")
    assert (type(file).__name__, file.target) == ("ToyFile", "toy")
    assert (cli.folder / "digits.toy").read_bytes()[:4] == b"TOY1"


def test_an_onnx_file_of_the_target_is_verified_in_its_runtime(cli: Cli) -> None:
    network = qtool.load_model(DIGITS[0], Path(DIGITS[2]))
    batches = qtool.load_data("calib_data/digits")
    result = qtool.quantize(network, batches, target="toy").export(cli.folder / "digits.onnx")
    assert result is not None
    assert result.parity.runtime == "toy 1.0"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_it(command: str, cli: Cli) -> None:
    assert "toy" in cli(*TOY, command, *COMMANDS[command]).output


@pytest.mark.parametrize(
    ("register", "row", "message"),
    [
        (qtool.register_format, replace(FORMAT, suffix=".new"), "format 'tflite' is registered"),
        (qtool.register_format, replace(FORMAT, names=("new",)), "of another format end in '.tfl"),
        (qtool.register_runtime, OPENVINO, "runtime 'openvino' is registered already"),
        (qtool.register_target, replace(TARGET, runtime="none"), "the unknown runtime 'none'"),
        (qtool.register_target, replace(TARGET, timed_in="nod"), "did you mean 'node'"),
        (
            qtool.register_target,
            replace(TARGET, file=FileForm(formats=("none",))),
            "the unknown format 'none'; register it first",
        ),
    ],
)
def test_a_row_that_does_not_fit(register: Any, row: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        register(row)
