"""Each other file or folder that an error names is given: the next call works."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

import qtool
from qtool.backends.formats import check_quantized
from qtool.core.atomic import check_writable
from qtool.core.numpy_files import find_labels, read_arrays
from qtool.core.path_arguments import model_file
from qtool.core.remedies import OtherFile
from qtool.evaluation.report.page.folder import check_folder
from qtool.evaluation.report.report import Report
from qtool.frontends.data.rows import read_rows
from qtool.frontends.huggingface.model_folder import read_config
from qtool.frontends.state_dicts import load_weights
from tests.mistakes.nets import IMAGES
from tests.mistakes.remedies import Edit, check_edit

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>'
WEIGHTS = "float[4, 3] w = {0,1,2,3,4,5,6,7,8,9,10,11}, float s = {0.1}, int8 z = {0}, bool b = {1}"


def file(nodes: str = "y = MatMul (x, w)", opset: int = 17, name: str = "made.onnx") -> Path:
    graph = f"g (float[n, 4] x) => (float[n, 3] y) <{WEIGHTS}> {{ {nodes} }}"
    onnx.save(onnx.parser.parse_model(f"{HEAD.format(opset=opset)} {graph}"), name)
    return Path(name)


def loaded(nodes: str = "y = MatMul (x, w)", opset: int = 17) -> Callable[[], object]:
    return lambda: qtool.load_onnx(file(nodes, opset))


def table(text: str, name: str = "t.json") -> Callable[[], object]:
    def call() -> None:
        Path(name).write_text(text)
        list(qtool.load_data(name))

    return call


def report(text: str) -> Callable[[], object]:
    def call() -> None:
        Path("report.json").write_text(text)
        Report.read(Path("report.json"))

    return call


def writable(path: str, *read: str, suffixes: tuple[str, ...] = ()) -> Callable[[], object]:
    return lambda: check_writable(path, *read, suffixes=suffixes)


def weights(**tensors: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        torch.save(tensors, "w.pt")
        load_weights(nn.Linear(2, 1), "w.pt")

    return call


def external() -> object:
    return qtool.load_onnx("external.onnx")


def real_report() -> None:
    data = [np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)]
    options = qtool.ReportOptions(seconds=0.01)
    qtool.compare(["models/a.onnx", "models/b.onnx"], data, "compared", options)
    Report.read(Path("compared/report.json"))


ONE, TWO = torch.ones(1, 2), torch.ones(1)
EDITS: dict[str, Edit] = {
    "name another file": (writable("x.npy", "x.npy"), writable("y.npy", "x.npy")),
    "name a file": (writable("."), writable("y.onnx")),
    "name an ordinary file": (writable("/dev/null"), writable("y.onnx")),
    "name the file {}": (
        writable("y.pth", suffixes=(".onnx",)),
        writable("y.onnx", suffixes=(".onnx",)),
    ),
    "name another one": (writable("x.npy/y.onnx"), writable("some/y.onnx")),
    "name the one with the labels 'labels'": (
        lambda: find_labels("two.npz", Path("x.npy")),
        lambda: find_labels("named.npz", Path("x.npy")),
    ),
    "give a file, or the folder that `qtool quantize` wrote": (
        lambda: model_file("images"),
        lambda: model_file("models/a.onnx"),
    ),
    "name one, as {}": (lambda: model_file("models"), lambda: model_file("models/a.onnx")),
    "choose a folder for the report": (
        lambda: check_folder(Path("x.npy")),
        lambda: check_folder(Path("new")),
    ),
    "choose a new folder": (
        lambda: check_folder(Path("images")),
        lambda: check_folder(Path("new")),
    ),
    "give report.json": (report("<html>"), real_report),
    "give the report.json of one": (report("[]"), real_report),
    "create the report again": (report('{"schema": 0, "title": "", "accuracy": 0}'), real_report),
    "write a list of objects, [{...}, {...}], an object per line, or columns of equal lengths": (
        table('{"a": [1, 2], "b": [1]}'),
        table('[{"a": 1, "b": 2}, {"a": 2, "b": 1}]'),
    ),
    "rename one": (table("a,a\n1,2\n", "t.csv"), table("a,b\n1,2\n", "t.csv")),
    "move it into one": (
        lambda: read_rows(Path("images")),
        lambda: (shutil.move("images/b.png", "images/cat/b.png"), read_rows(Path("images"))),
    ),
    "give the folder that save_pretrained wrote": (
        lambda: read_config(Path("images")),
        lambda: read_config(Path("bert")),
    ),
    "download it, and give the file or folder": (
        lambda: qtool.load_model("https://example.com/net.onnx"),
        lambda: qtool.load_model(file()),
    ),
    "give the float file": (
        loaded("q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w)"),
        loaded(),
    ),
    "give them as an input": (
        loaded(
            "y = If (b) <then_branch = t () => (float[4, 3] r) {r = RandomNormalLike (w)}, "
            "else_branch = e () => (float[4, 3] i) {i = Identity (w)}>"
        ),
        loaded(),
    ),
    "convert it with onnx.version_converter": (loaded(opset=99), loaded(opset=13)),
    "give the file that `qtool quantize` wrote": (
        lambda: check_quantized(file()),
        lambda: check_quantized(
            file("q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w)")
        ),
    ),
    "give the weights of this model, with the sizes that it was trained with": (
        weights(other=ONE),
        weights(weight=ONE, bias=TWO),
    ),
    "put it into the folder of the model, under this name": (
        lambda: (Path("away").mkdir(), shutil.move("weights.bin", "away"), external()),
        lambda: (shutil.move("away/weights.bin", "."), external()),
    ),
    "remove it from the outputs": (
        lambda: qtool.capture_model(qtool.load_onnx("sequence.onnx"), torch.ones(2, 4)),
        lambda: qtool.capture_model(qtool.load_onnx(file()), torch.ones(2, 4)),
    ),
    "save numbers": (lambda: read_arrays(Path("objects.npy")), lambda: read_arrays(Path("x.npy"))),
    "save it as UTF-8": (
        lambda: (Path("t.txt").write_bytes(b"\xff\xfe"), read_rows(Path("t.txt"))),
        lambda: (Path("t.txt").write_text("a cat"), read_rows(Path("t.txt"))),
    ),
}
"""Edit -> (a call that is refused with it, the call after the edit)."""


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    np.save("x.npy", IMAGES.numpy())
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    np.savez("two.npz", x=IMAGES, kind=np.zeros(40))
    np.savez("named.npz", x=IMAGES, labels=np.zeros(40))
    for name in ("images/cat", "models", "bert"):
        Path(name).mkdir(parents=True)
    for name in ("images/cat/a.png", "images/b.png"):
        Image.new("RGB", (8, 8)).save(name)
    for name in ("a", "b"):
        file(name=f"models/{name}.onnx")
    Path("bert/config.json").write_text('{"model_type": "bert"}')
    model = onnx.load(file())
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name)
        )
    options = {"location": "weights.bin", "size_threshold": 0}
    onnx.save(model, "external.onnx", save_as_external_data=True, **options)
    outputs = "float[n, 3] y, seq(float[n, 4]) u"
    graph = f"g (float[n, 4] x) => ({outputs}) <{WEIGHTS}>"
    nodes = "{ y = MatMul (x, w) u = SequenceConstruct (x) }"
    onnx.save(onnx.parser.parse_model(f"{HEAD.format(opset=17)} {graph} {nodes}"), "sequence.onnx")
    Path("bad.jsonl").write_text("{}\n")


@pytest.mark.parametrize("text", EDITS)
def test_the_next_call_works(text: str) -> None:
    check_edit(OtherFile, text, EDITS[text])
