"""Tables of numbers on the command line: what is an input, and what data a figure is of."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli.conftest import Cli

MODEL = "tests.cli.models:first_columns"


@pytest.fixture
def tables(cli: Cli) -> None:
    values = np.random.default_rng(0).normal(size=(64, 5))
    header = "a,b,c,d,price"
    for name in ("train", "test"):
        np.savetxt(f"{name}.csv", values, delimiter=",", header=header, comments="")
        np.savez(f"{name}.npz", x=values[:, :4].astype(np.float32), price=values[:, 4])
    np.savetxt("inputs.csv", values[:, :4], delimiter=",", header="a,b,c,d", comments="")


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("data", ["train.csv", "inputs.csv", "train.npz"])
def test_labels_are_no_input_of_the_calibration(cli: Cli, data: str) -> None:
    """The network takes any number of columns, so that one too many would not be seen."""
    other = data.replace("train", "test").replace("inputs", "test")
    command = ("quantize", MODEL, "--data", data, "--labels", "price", "--eval-data", other)
    made = cli(*command, "-o", "m.onnx", "--seconds", "0")
    assert "MAE" in made.stdout
    assert "(calibration data)" not in made.stdout


@pytest.mark.usefixtures("tables")
def test_an_evaluation_on_the_calibration_data_says_so(cli: Cli) -> None:
    command = ("quantize", MODEL, "--data", "train.csv", "--labels", "price", "--seconds", "0")
    made = cli(*command, "--eval-data", "train.csv", "-o", "m.onnx")
    assert "(calibration data)" in made.stdout
