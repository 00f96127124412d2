"""Applies remedies of errors to command lines, and the files that these name."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main
from torch import nn

import qtool
from qtool import cli as qtool_cli
from qtool.core import remedies
from qtool.core.argument_names import options_in_messages
from qtool.core.errors import QtoolError
from qtool.core.remedies import Argument, DataEdit, Omission, Remedy
from tests.mistakes.nets import IMAGES, image_net, quantize, rows

M = "tests.mistakes.nets"
QUICKLY = {"quantize": "--accuracy fast --timing 0", "evaluate": "--seconds 0.01"}
"""Command -> what makes it quick."""
VALUES = {
    "--data": f"{M}:images",
    "--shape": "3,8,8",
    "--target": "onnxruntime",
    "--eval": f"{M}:score",
    "--fix": "n=3",
    "--model": "float.onnx",
    "--other-model": "",
    "--calibration": "float.calib",
}
"""Argument, or placeholder of a value -> what the user chooses."""
PLACEHOLDERS = {"FILE.onnx": "other.onnx", "n=VALUE": "n=3", "s=VALUE": "s=3.0"}
FLAGS = ("--external-data",)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands name."""
    place = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        np.save("images.npy", IMAGES.numpy())
        np.save("labels.npy", np.arange(40) % 5)
        vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
        np.save("vectors.npy", vectors)
        np.savez("branches.npz", x=vectors[:1], n=[3])
        torch.save(nn.Linear(4, 3).state_dict(), "state.pt")
        Path("layer.toml").write_text('[[rules]]\nselect = "0"\nas = "float"\n')
        Path("float.toml").write_text('[[rules]]\nselect = "*"\nas = "float"\n')
        Path("bert").mkdir()
        Path("bert/config.json").write_text("{}")
        linear = "y = MatMul (x, w)"
        _save("float.onnx", "float[n, 4] x", linear)
        batches = [torch.from_numpy(vectors)]
        qtool.calibrate(qtool.load_onnx("float.onnx"), batches).save("float.calib")
        rounded = "q = QuantizeLinear (w, step, zero) d = DequantizeLinear (q, step, zero)"
        _save("weights.onnx", "float[n, 4] x", f"{rounded} y = MatMul (x, d)")
        _save("one.onnx", "float[n, 4] x", "r = Reshape (x, sizes) y = MatMul (r, w)")
        _save("four.onnx", "float[4, 4] x", linear, "float[4, 3] y")
        _save("open.onnx", "float[n, m, 4] x", linear, "float[n, m, 3] y")
        _save("texts.onnx", "string[n] t, float[n, 4] x", f"{linear} u = Identity (t)")
        then, other = (f"(float[n, 3] {r}) {{ {r} = MatMul (x, w) }}" for r in "te")
        _save(
            "branches.onnx",
            "float[n, 4] x, int64[1] n",
            "c = Greater (n, one) "
            f"y = If (c) <then_branch = a () => {then}, else_branch = b () => {other}>",
        )
        np.savez("threshold.npz", x=vectors[:1], s=np.float32([3]))
        _save(
            "threshold.onnx",
            "float[n, 4] x, float[1] s",
            "o = CastLike (one, s) c = Greater (s, o) "
            f"y = If (c) <then_branch = a () => {then}, else_branch = b () => {other}>",
        )
        quantize([IMAGES], image_net()).export("image.onnx")
        quantize([IMAGES], rows()).export("rows.onnx")
    return place


def _save(name: str, inputs: str, nodes: str, output: str = "float[n, 3] y") -> None:
    weights = ", ".join(str(k / 10) for k in range(12))
    constants = f"float[4, 3] w = {{{weights}}}, int64[1] one = {{1}}, int64[2] sizes = {{1, 4}}"
    constants += ", float step = {0.01}, int8 zero = {0}"
    text = f"g ({inputs}) => ({output}) <{constants}> {{ {nodes} }}"
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{head} {text}"), name)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[QtoolError]:
    """The errors with remedies that were made so far."""
    errors: list[QtoolError] = []
    make = QtoolError.__init__

    def record(self: QtoolError, message: str = "", *remedies: Remedy) -> None:
        make(self, message, *remedies)
        errors.extend([self] if remedies else [])

    monkeypatch.setattr(QtoolError, "__init__", record)
    return errors


@pytest.fixture
def here(files: Path, folder: Path) -> None:
    """The files, in the current directory."""
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)


def key_of(remedy: Remedy) -> str:
    return remedy.code if isinstance(remedy, DataEdit) else getattr(remedy, "name", "")


def run(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the text of the errors of a command, made quick."""
    words = [*words, *QUICKLY.get(words[0], "").split()]
    result = CliRunner().invoke(main, words, prog_name="qtool")
    assert result.exit_code in (0, 1, 2, 3), result.output
    return result.exit_code, result.stderr


def changed(words: list[str], remedy: Argument | Omission) -> list[str]:
    """Return a command line with an argument replaced, added or left out."""
    words = list(words)
    for name in (remedy.name, getattr(remedy, "replaces", "")):
        if name in words:
            at = words.index(name)
            del words[at : at + (1 if name in FLAGS else 2)]
    if isinstance(remedy, Omission):
        return words
    with options_in_messages():
        spelled = str(Argument(remedy.name, remedy.value, "{}"))
    if remedy.value is None:
        spelled = f"{spelled} {VALUES[remedy.name]}"
    for placeholder, value in PLACEHOLDERS.items():
        spelled = spelled.replace(placeholder, value)
    return [*words, *shlex.split(spelled)]


Edit = tuple[Callable[[], object], Callable[[], object]]
"""A call that is refused with a remedy, and the call after it."""


def check_edit(kind: type[Remedy], text: str, edit: Edit) -> None:
    """Check that a call offers a remedy, whose varying parts are {}, and works after it."""
    refused, edited = edit
    with pytest.raises(QtoolError) as caught:
        refused()
    form = re.escape(text).replace(re.escape("{}"), ".+")
    texts = [str(r) for r in caught.value.remedies if isinstance(r, kind)]
    assert any(re.fullmatch(form, each) for each in texts), caught.value
    edited()


def texts_of(kind: str) -> set[str]:
    """Return the texts of the remedies of a kind in the whole code, with {} for varying parts."""
    return {_text(call.args[0]) for name, call in _calls() if name == kind and call.args}


@cache
def _calls() -> list[tuple[str, ast.Call]]:
    """Return (function, call) for the calls of remedies in the whole code."""
    kinds = {kind.__name__ for kind in get_args(Remedy)}
    folders = Path(remedies.__file__).parents[1], Path(qtool_cli.__file__).parent
    return [
        (node.func.id, node)
        for folder in folders
        for path in folder.rglob("*.py")
        if "qtool.core.remedies" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
    ]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def check_offer(error: QtoolError, sites: set[str]) -> None:
    names = {key_of(remedy) for remedy in error.remedies}
    assert {site.partition(" ")[2] for site in sites} <= names, error
