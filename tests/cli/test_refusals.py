"""User errors: exit code 2, one sentence, no traceback, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import DIGITS, ROOT, Cli

M = "tests.cli.models:"
UP = f"{M}transposed"
TUNE = ("tune", UP, "--data", f"{M}images", "--eval-data", f"{M}images", "-o", "out.onnx")
QUANTIZE = ("quantize", UP, "--data", f"{M}images", "-o", "out.onnx")


def quantize(model: str = UP, data: str = f"{M}images", output: str = "out.onnx") -> list[str]:
    return ["quantize", model, "--data", data, "-o", output]


CASES: dict[str, tuple[list[str], str]] = {
    "no such module": (quantize("nowhere:net"), "cannot import nowhere:net: ModuleNotFoundError"),
    "no such name": (quantize(f"{M}net"), f"cannot import {M}net: AttributeError"),
    "no model": (quantize("resnet"), "no such model: 'resnet'; give package.module:factory"),
    "a factory that fails": (quantize(f"{M}broken"), "failed: RuntimeError: no licence"),
    "a model that cannot be in eval mode": (quantize(f"{M}restless"), "eval() fails: RuntimeError"),
    "a factory of something else": (
        quantize(f"{M}number"),
        "returns an int; let it return",
    ),
    "no such program": (quantize("net.pt2"), "net.pt2: no such file"),
    "a model that branches": (quantize(f"{M}branching"), "branches on values of its data"),
    "nothing to quantize": (quantize(f"{M}nothing"), "nothing in this model can run in integers"),
    "no such weights": (
        [*quantize(), "--weights", "w.safetensors"],
        "w.safetensors: no such weights file",
    ),
    "weights of another model": (
        [*quantize(), "--weights", DIGITS[2]],
        "does not fit Sequential",
    ),
    "a fixed input without a value": ([*quantize(), "--fix", "rate"], "'rate' is not INPUT=VALUE"),
    "a fixed input of a module": ([*quantize(), "--fix", "rate=1"], "--fix is for .onnx files"),
    "no such data": (quantize(data="images.npz"), "images.npz: no such file or folder"),
    "a folder without data": (
        quantize(data="tests"),
        "tests has no data; supported files are .npy",
    ),
    "data of another kind": (quantize(data="data.txt"), "no preprocessing found for these texts"),
    "data that is no data": (quantize(data="broken.npz"), "broken.npz is a text ('no data')"),
    "empty data": (quantize(data=f"{M}empty"), "the calibration data is empty"),
    "data that fails": (quantize(data=f"{M}fails"), "failed: RuntimeError: the disk is gone"),
    "NaN": (quantize(data=f"{M}not_a_number"), "batch 3, input 0 holds NaN"),
    "another shape": (quantize(data=f"{M}other_shape"), "batch 3, input 'input' has shape"),
    "data of another model": (quantize(data="calib_data/digits"), "does not run on the given"),
    "output below a file": (quantize(output="data.txt/out.onnx"), "data.txt is not a directory"),
    "output of another suffix": (
        quantize(output="out.pb"),
        "models are written as .onnx or .tflite; name the file out.onnx",
    ),
    "a TFLite file of another target": (
        [*quantize(output="out.tflite"), "--target", "onnxruntime"],
        "it supports: qdq, qoperator; --target tflite supports tflite",
    ),
    "output is a folder": (quantize(output="tests"), "it is a directory; name a file"),
    "unknown observer": ([*quantize(), "--observer", "median"], "unknown observer 'median'"),
    "bad observer option": ([*quantize(), "--observer", "percentile:200"], "between 50 and 100"),
    "unknown target": ([*quantize(), "--target", "npu"], "unknown target 'npu'; there are"),
    "a form the target lacks": (  # said before any data is read
        [*quantize(data=f"{M}fails"), "--target", "tflite", "--format", "qoperator"],
        "target tflite does not support format 'qoperator'; it supports: qdq",
    ),
    "unknown input": ([*quantize(), "--dynamic", "images:0"], "'images', which is not an input"),
    "dynamic without a number": ([*quantize(), "--dynamic", "x"], "'x' is not INPUT:DIM"),
    "a dynamic digit that is no number": ([*quantize(), "--dynamic", "x:²"], "'x:²' is not INPUT"),
    "no dimension has that number": (
        [*quantize(), "--dynamic", "x:" + "9" * 5000],
        "is not INPUT:DIM or INPUT:DIM=NAME",
    ),
    "a recipe with NUL in its name": ([*quantize(), "--recipe", "a\0b"], "holds a NUL character"),
    "weights with NUL in their name": ([*quantize(), "--weights", "a\0b"], "holds a NUL character"),
    "an output with NUL in its name": (quantize(output="a\0b"), "holds a NUL character"),
    "a file with NUL in its name": (["inspect", "a\0b.onnx"], "holds a NUL character"),
    "a folder with NUL in its name": (
        ["blockwise", "a\0b", "--data", "x.npy", "-o", "out.onnx"],
        "holds a NUL character",
    ),
    "no such calibration": (
        ["convert", UP, "--calibration", "no.calib", "-o", "out.onnx"],
        "no.calib: no such calibration file",
    ),
    "a foreign calibration": (
        ["convert", UP, "--calibration", "data.txt", "-o", "out.onnx"],
        "data.txt: not a calibration file, or a damaged one",
    ),
    "merge of nothing": (["merge", "no.calib", "-o", "all.calib"], "no.calib: no such calibration"),
    "inspect nothing": (["inspect", "no.onnx"], "no.onnx: no such file"),
    "inspect text": (
        ["inspect", "data.txt"],
        "data.txt is neither a model (.onnx, .tflite) nor a calibration",
    ),
    "inspect broken ONNX": (["inspect", "text.onnx"], "text.onnx is a text ('no data')"),
    "a wrong option": ([*quantize(), "--fast"], "No such option"),
    "no output": (quantize()[:-2], "Missing option '-o'"),
    "coverage beyond one": ([*quantize(), "--min-coverage", "1.5"], "is not in the range"),
    "a goal that is no number": ([*quantize(), "--min-sqnr", "nan"], "nan is not a finite number"),
    "a drop that is no number": ([*TUNE, "--max-drop", "nan"], "nan is not a finite number"),
    "a speed-up that is no number": ([*TUNE, "--min-speedup", "nan"], "nan is not a finite"),
    "no speed-up at all": ([*TUNE, "--min-speedup", "0"], "is not in the range x>0"),
    "dB that are no number": ([*TUNE, "--min-sqnr", "inf"], "inf is not a finite number"),
    "a search without end": ([*TUNE, "--budget", "nan"], "nan is not a finite number"),
    "confidence that is no number": ([*TUNE, "--confidence", "nan"], "nan is not a finite"),
    "a time without end": (["bench", "a.onnx", "--seconds", "inf"], "is not a finite number"),
    "a digit that is no number": (["bench", "a.onnx", "--batch-sizes", "²"], "not a list of"),
    "as many as no machine has": (["bench", "a.onnx", "--threads", "9" * 30], "not a list of"),
    "more threads than processors": (
        ["bench", "a.onnx", "--threads", "100000"],
        "threads is 100000; give a whole number of at least 1 and of at most",
    ),
    "samples without end": (["verify", "a.onnx", "--samples", "9" * 20], "is not in the range"),
    "more than the memory": (
        ["calibrate", UP, "--data", "none", "--shape", "999999,999999,99", "-o", "out.calib"],
        "there is not enough memory",
    ),
    "an unknown command": (["prune", UP], "unknown command 'prune'"),
}


def test_a_recipe_that_is_a_pipe_is_not_waited_for(folder: Cli) -> None:
    os.mkfifo(folder.folder / "pipe.toml")
    assert "not a regular file" in folder.refuses(*quantize(), "--recipe", "pipe.toml")


def test_a_report_into_a_circle_of_links(folder: Cli) -> None:
    (folder.folder / "circle").symlink_to("circle")
    arguments = ("report", UP, "--data", f"{M}images", "-o", "circle")
    assert "Symlink loop" in folder.refuses(*arguments)


@pytest.fixture
def folder(cli: Cli) -> Cli:
    for name in ("data.txt", "broken.npz", "text.onnx"):
        (cli.folder / name).write_text("no data")
    return cli


@pytest.mark.parametrize(("arguments", "message"), CASES.values(), ids=CASES.keys())
def test_a_user_error_is_one_sentence(arguments: list[str], message: str, folder: Cli) -> None:
    assert message in folder.refuses(*arguments)


def test_without_an_error_the_same_call_writes(folder: Cli) -> None:
    folder(*quantize(output="new/out.onnx"))
    assert (folder.folder / "new" / "out.onnx").is_file()


def test_a_calibration_of_another_model(sample: Cli) -> None:
    untrained = sample.refuses(
        *("convert", DIGITS[0], "--calibration", "digits.calib", "-o", "out.onnx")
    )
    assert "with other weights; calibrate this model first" in untrained


def test_calibrations_of_two_models_do_not_merge(sample: Cli) -> None:
    sample("calibrate", UP, "--data", f"{M}images", "-o", "up.calib")
    sentence = sample.refuses("merge", "up.calib", "digits.calib", "-o", "all.calib")
    assert "different model" in sentence


def test_labels_that_are_not_there(sample: Cli) -> None:
    arguments = ("evaluate", "digits.int8.onnx", "--model", *DIGITS, "--data")
    data = "examples/digits/eval.npz"
    assert "holds no array 'y'" in sample.refuses(*arguments, data, "--labels", "y")


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


def test_what_a_command_reads_is_not_written_over(sample: Cli) -> None:
    model = ("examples.digits.network:digits_net", "--weights", "weights.safetensors")
    (sample.folder / "weights.safetensors").write_bytes(b"weights")
    given = {
        "weights.safetensors": ("quantize", *model, "--data", "calib_data/digits"),
        "digits.calib": ("convert", *model, "--calibration", "digits.calib"),
    }
    for name, arguments in given.items():
        said = sample.refuses(*arguments, "-o", name)
        assert said == f"cannot write {name}: {name} is an input; name another file"


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
