"""Short commands: blockwise, tune, scales, tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from tests.cli.conftest import DIGITS, Cli
from tests.cli.float_onnx import write_float_onnx

HEAD_FLOAT = '[[rules]]\nselect = "y"\nas = "float"\n'


def test_a_recipe_is_followed_and_the_result_told(cli: Cli) -> None:
    x = write_float_onnx(cli.folder)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT)
    given = ("quantize", "float.onnx", "--data", "x.npy", "--mode", "dynamic", "-o", "y.onnx")
    printed = json.loads(cli(*given, "--recipe", "r.toml", "--json").stdout)
    assert printed["file"].endswith("y.onnx")
    kinds = [n.op_type for n in onnx.load(cli.folder / "y.onnx").graph.node]
    assert kinds.count("MatMulInteger") == kinds.count("Gemm") == 1
    (y,) = ort.InferenceSession(cli.folder / "y.onnx").run(None, {"x": x})
    assert y.shape == (8, 8)
    (cli.folder / "r.toml").write_text(HEAD_FLOAT.replace('"y"', '"z"'))
    assert "selects no node" in cli.refuses(*given, "--recipe", "r.toml")


DATA = ("--eval-data", "examples/digits/eval.npz", "--labels", "labels")
QUICK = ("--accuracy", "fast", "--budget", "0")


def test_a_goal_out_of_reach_writes_the_best_and_says_how_far(cli: Cli) -> None:
    asked = ("tune", *DIGITS, "--data", "calib_data/digits", *DATA, *QUICK, "-o", "best.onnx")
    result = cli(*asked, "--min-sqnr", "200", "--save-recipe", "best.toml", code=1)
    assert "goal missed: SQNR is 3" in result.stderr
    assert (cli.folder / "best.onnx").stat().st_size > 1000
    assert 'mode = "static"' in (cli.folder / "best.toml").read_text()
    again = json.loads(cli(*asked, "--min-sqnr", "20", "--json").stdout)
    assert again["reached"]


class _Reader(CalibrationDataReader):
    def __init__(self, x: Any) -> None:
        self.batches = iter([{"x": x}])

    def get_next(self) -> Any:
        return next(self.batches, None)


def test_a_file_of_scales_becomes_a_verified_file(cli: Cli, tmp_path: Path) -> None:
    x = write_float_onnx(tmp_path)
    source, other, written = (str(tmp_path / f"{n}.onnx") for n in ("float", "other", "own"))
    quantize_static(source, other, _Reader(x))
    result = cli("convert", source, "--scales", other, "--seconds", "0", "--json", "-o", written)
    notes = " ".join(json.loads(result.stdout)["notes"])
    assert f"of 5 scales are those of {other} (onnx.quantize)" in notes
    assert "no step recovers accuracy" in notes
    assert cli("verify", written).stdout.startswith(f"{written}  verified\n")


def test_scales_are_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    x = write_float_onnx(tmp_path)
    source, other = (str(tmp_path / f"{n}.onnx") for n in ("float", "other"))
    quantize_static(source, other, _Reader(x))
    assert "input" in cli.refuses("convert", source, "--scales", other, "-o", other)


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
