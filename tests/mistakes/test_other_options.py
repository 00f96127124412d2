"""Options that another tool or command has, and options written twice or wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from qtool.cli import main

from tests.mistakes.mistake import check_command
from tests.mistakes.nets import IMAGES

Q = "quantize tests.mistakes.nets:image_net --data images.npy -o out.onnx"
META = "did you mean"
OPTIONS: dict[str, str] = {
    "--epochs 5": "'--epochs'; leave it out: there is no training to set up; --accuracy best",
    "--device cuda": "'--device'; leave it out: a conversion runs on the CPU",
    "--bits 4": f"'--bits'; {META} '--mode'?",
    "--dtype int8": f"'--dtype'; {META} '--mode'?",
    "--weight_bits 8": f"'--weight_bits'; {META} '--mode'?",
    "--calib-dataset x.npz": f"'--calib-dataset'; {META} '--data'?",
    "-d images.npy": f"'-d'; {META} '--data'?",
    "--num-samples 8": f"'--num-samples'; {META} '--samples'?",
    "--output-dir out": f"'--output-dir'; {META} '-o'?",
    "--checkpoint net.pt": f"'--checkpoint'; {META} '--weights'?",
    "--calib-method max": f"'--calib-method'; {META} '--observer'?",
    "--awq": f"'--awq'; {META} '--recover'?",
    "--exclude head": f"'--exclude'; {META} '--recipe'?",
    "--input-shape 1,3,8,8": "'--input-shape'; leave it out: the data has the shapes; --shape is",
    "--per-channel": "'--per-channel'; leave it out: the target decides it",
    "--opset 13": "'--opset'; leave it out: the target decides it",
    "--no-verify": "'--no-verify'; leave it out: each file is verified before it is written",
    "--overwrite": "'--overwrite'; leave it out: the result replaces the file that is there",
    "--model images.npy": "'--model'; MODEL is written without an option",
    "--max-drop 0.01": "'--max-drop'; `qtool gate`, `qtool report`, `qtool compare` and",
    "--ouput out.onnx": f"'--ouput'; {META} '--output'?",
    "--hepl": f"'--hepl'; {META} '--help'?",
    "--sparkle": "No such option '--sparkle'.",
    "--json out.json": "extra argument (out.json); --json prints: write > out.json behind",
    "--observer percentile=99.9": "Invalid value for '--observer': write percentile:99.9",
    "--samples 10%": "Invalid value for '--samples': '10%' is not a whole number.",
    "--shape 3,8,8": "Invalid value for --shape: it is for --data none; leave it out",
}
COMMANDS = {
    "help quantize": "help is an option: qtool --help, or qtool COMMAND --help",
    "version": "version is an option: qtool --version",
    "eval int8.onnx": "unknown command 'eval'; did you mean 'evaluate'?",
    "benchmark int8.onnx": "unknown command 'benchmark'; did you mean 'bench'?",
    "ptq net.onnx": "unknown command 'ptq'; did you mean 'quantize'?",
    "check int8.onnx": "unknown command 'check'; did you mean 'verify'?",
}


@pytest.fixture(autouse=True)
def files(folder: object) -> None:
    np.save("images.npy", IMAGES.numpy())
    np.save("more.npy", np.full((4, 3, 8, 8), np.nan, "f4"))


@pytest.mark.parametrize(("option", "expected"), OPTIONS.items(), ids=OPTIONS)
def test_an_option(option: str, expected: str) -> None:
    check_command(f"{Q} {option}", expected)


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.items(), ids=COMMANDS)
def test_a_command(arguments: str, expected: str) -> None:
    check_command(arguments, expected)


@pytest.mark.parametrize("again", ["--data more.npy", "--data=more.npy"])
def test_data_given_twice(again: str) -> None:
    result = CliRunner().invoke(main, f"{Q} {again}".split(), prog_name="qtool")
    assert "note: --data is given 2 times: the last one counts, more.npy" in result.stderr
    assert "batch 0, input 0 holds NaN" in result.stderr


def test_options_given_once_or_with_one_value_have_no_note() -> None:
    arguments = f"{Q} --data images.npy --samples 1.5"
    result = CliRunner().invoke(main, arguments.split(), prog_name="qtool")
    assert "times" not in result.stderr
