"""Mistakes of a first hour: arguments in the wrong place, files of another kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from qtool.cli import main

from tests.mistakes.mistake import check_command
from tests.mistakes.nets import IMAGES, calibration, quantize

M = "tests.mistakes.nets"
Q = f"quantize {M}:image_net --data images.npy -o out.onnx"
PRICES = f"quantize {M}:price_net --data prices.csv -o out.onnx"
COMMANDS: dict[str, tuple[str, str]] = {
    "a module in this folder": (
        "quantize mynets --data images.npy -o out.onnx",
        "mynets is a module of Python; name what builds the model: mynets:factory",
    ),
    "an array as weights": (
        f"{Q} --weights images.npy",
        "images.npy is an array, no state dict; save a state dict with safetensors",
    ),
    "a table for a network of images": (
        f"quantize {M}:image_net --data numbers.csv -o out.onnx",
        "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [32, 4]",
    ),
    "too few columns": (
        f"{PRICES} --column a,b",
        "the input is the columns a, b: choose the 3 that the model takes with --column",
    ),
    "columns with spaces between": (
        f"{PRICES} --column a b c",
        "Got unexpected extra arguments (b c); separate values with commas: --column a,b,c",
    ),
    "steps with spaces between": (
        f"{Q} --recover smooth-quant gptq",
        "extra argument (gptq); separate values with commas: --recover smooth-quant,gptq",
    ),
    "a column of texts among numbers": (
        f"{PRICES} --column a,b,city",
        "the column 'city' holds 'Rome', others of ... choose the numbers alone with --column a,b",
    ),
    "a category among numbers": (
        f"quantize {M}:price_net --data city.csv --labels price -o out.onnx",
        "city.csv, row 1: the column 'city' holds 'Rome', no number, ... give it as numbers, as",
    ),
    "the index that pandas writes, among texts": (
        f"quantize {M}:price_net --data index.csv --labels price -o out.onnx",
        "choose the numbers with --column a,b,c, or choose the text with --column city",
    ),
    "channels last for a file": (
        "quantize float.onnx --data nhwc.npy -o out.onnx",
        "the batch gives float32[32, 8, 8, 3]; its channels are last: give x.permute(0, 3, 1, 2)",
    ),
    "bytes for a file": (
        "quantize float.onnx --data bytes.npy -o out.onnx",
        "convert it first (x.float() / 255), then the mean and standard deviation of the training",
    ),
    "a file to continue a text that is not there": (
        "generate no.onnx hello",
        "no.onnx: no such file",
    ),
    "data without its option": (
        f"{Q} images.npy",
        "Got unexpected extra argument (images.npy); write it as --data images.npy",
    ),
    "a float file without its option": (
        "evaluate int8.onnx float.onnx --model float.onnx --data images.npy",
        "Got unexpected extra argument (float.onnx); write it as --model float.onnx",
    ),
    "a factory behind the file": (
        f"evaluate int8.onnx {M}:image_net --data images.npy",
        (
            f"Missing option '--model'; write `qtool evaluate int8.onnx --model {M}:image_net "
            "--data images.npy`"
        ),
    ),
    "a factory in front of the file": (
        f"evaluate {M}:image_net int8.onnx --data images.npy",
        f"write `qtool evaluate int8.onnx --model {M}:image_net --data images.npy`",
    ),
    "a float file behind the file of a gate": (
        "gate int8.onnx float.onnx --data images.npy",
        "Missing option '--against'; write `qtool gate int8.onnx --against float.onnx --data",
    ),
    "a file without its float model": (
        "evaluate int8.onnx --data images.npy",
        "Missing option '--model'. The float model, as for `qtool quantize`.",
    ),
    "images of another size": (
        "verify int8.onnx --data small.npy",
        "input 'input' has shape [32, 3, 6, 6], the model takes ['batch', 3, 8, 8]",
    ),
    "labels as data": (
        f"quantize {M}:image_net --data labels.npy -o out.onnx",
        "it has one number per sample, as labels have: give the inputs",
    ),
    "labels as data of a file": (
        "quantize float.onnx --data labels.npy -o out.onnx",
        "it has one number per sample, as labels have: give the inputs",
    ),
    "labels as data of an int8 file": (
        "verify int8.onnx --data labels.npy",
        "it has one number per sample, as labels have: give the inputs",
    ),
    "integers for an int8 file": (
        "verify int8.onnx --data integers.npy",
        "is int32, the model takes float32; convert it first (x.to(torch.float32))",
    ),
    "an option of other commands": (
        "convert float.onnx --calibration net.calib --data images.npy -o out.onnx",
        "No such option '--data'; ... and `qtool explain` have it",
    ),
    "a calibration of a model with other inputs": (
        f"convert {M}:similarities --calibration net.calib -o out.onnx",
        "the calibration was made with another model, ... 3, 8, 8]; calibrate this model first",
    ),
    "a file as calibration": (
        f"convert {M}:image_net --calibration int8.onnx -o out.onnx",
        "int8.onnx: not a calibration file, ... give the file that `qtool calibrate` wrote",
    ),
    "a metric without its module": (
        "evaluate int8.onnx --model float.onnx --data images.npy --eval metric",
        "'metric' names no function; write module:function",
    ),
    "a float model first in a report": (
        f"report {M}:image_net --model int8.onnx --data images.npy -o page",
        "--model is the float model of a file, and the first argument is a model ... leave out",
    ),
    "a mode for the report of a file": (
        "report int8.onnx --data images.npy --mode dynamic -o page",
        "--mode is for a model that is quantized first, not for a file; leave out --mode",
    ),
    "a page as folder of a report": (
        "report int8.onnx --data images.npy -o page.html",
        "page.html is the name of a file; the report is a folder: name it page",
    ),
    "a text of a network of images": (
        "generate int8.onnx hello",
        "int8.onnx has no KV cache, so it continues no text; write it with --task",
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    quantize([IMAGES]).export(place / "int8.onnx")
    _export(place / "float.onnx")
    return place


def _export(path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3, 8, 8] x) => (float[n, 5] y) <int64[2] flat = {-1, 192}>
        { f = Reshape (x, flat) y = MatMul (f, w) }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(192, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)


@pytest.fixture(autouse=True)
def here(files: Path, folder: Path) -> None:
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)
    images = IMAGES.numpy()
    np.save("images.npy", images)
    np.save("nhwc.npy", images.transpose(0, 2, 3, 1))
    np.save("bytes.npy", (images * 50 + 128).clip(0, 255).astype(np.uint8))
    np.savez("labelled.npz", images=images, labels=np.arange(40) % 5)
    np.save("integers.npy", (images * 50).astype(np.int32))
    np.save("small.npy", images[..., 1:7, 1:7])
    np.save("labels.npy", np.arange(40) % 5)
    rows = [[i / 8, 1 - i / 9, i % 3 / 2, i / 5] for i in range(40)]
    _write("prices.csv", "a,b,c,price,city", [[*row, "Rome"] for row in rows])
    _write("numbers.csv", "a,b,c,price", rows)
    _write("city.csv", "a,b,city,price", [[*row[:2], "Rome", row[3]] for row in rows])
    _write("index.csv", ",a,b,c,price,city", [[i, *row, "Rome"] for i, row in enumerate(rows)])
    Path("mynets.py").write_text("")
    calibration().save("net.calib")


def _write(name: str, head: str, rows: list[list[object]]) -> None:
    Path(name).write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    check_command(arguments, expected)


def test_labels_in_the_data_that_are_not_used() -> None:
    arguments = f"quantize {M}:price_net --data labelled.npz -o out.onnx"
    result = CliRunner().invoke(main, arguments.split(), prog_name="qtool")
    said = "note: labelled.npz has labels; --labels labels measures accuracy with them"
    assert said in result.stderr
