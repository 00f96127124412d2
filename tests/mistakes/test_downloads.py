"""Files that a download left in place of the wanted ones, given to each reader of files."""

import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from PIL import Image
from safetensors.torch import save, save_file
from torch import nn

import qtool
from qtool.core.downloads import check_download
from tests.mistakes.nets import IMAGES, calibration, flat_net, image_net, quantize

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
PAGE = b'<!DOCTYPE html>\n<html lang="en">\n<head><title>Sign in</title></head>, <p>a, b</p></html>'
ANSWERS: dict[str, tuple[bytes, str, str]] = {
    "a pointer": (POINTER, "is a pointer of Git LFS, not the file of 12,345 bytes", "git lfs pull"),
    "a page": (PAGE, "is a page of the web ('Sign in'), not the ", "download the file itself"),
    "nothing": (b"", "is empty", "download it again"),
}
"""What lies there -> its bytes, what the error says, and a remedy of it."""
TEXT = (b"Entry not found", "is a text ('Entry not found'), not the ", "download the file itself")


def _pt2() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(flat_net(), (torch.zeros(2, 12),)), buffer)
    return buffer.getvalue()


def _pt() -> bytes:
    buffer = io.BytesIO()
    torch.save(image_net().state_dict(), buffer)
    return buffer.getvalue()


def _array(name: str) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, IMAGES) if name == "npy" else np.savez(buffer, x=IMAGES)
    return buffer.getvalue()


def _onnx() -> bytes:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) '
    weights = ", ".join(["0.5"] * 4)
    model = parser.parse_model(f"{text} <float[4] w = {{{weights}}}> {{ y = Mul (x, w) }}")
    return bytes(model.SerializeToString())


def _picture(form: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(buffer, form)
    return buffer.getvalue()


def _tflite() -> bytes:
    quantize([IMAGES], image_net(), target="tflite").export("whole.tflite")
    return Path("whole.tflite").read_bytes()


def _parquet() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pa.table({"a": [0.5] * 100}), buffer)
    return buffer.getvalue()


def _rows(path: str) -> Any:
    return list(qtool.load_data(path))


def _weights(path: str) -> Any:
    return qtool.load_model("tests.mistakes.nets:image_net", weights=path)


def _images(path: str) -> Any:
    Path("images").mkdir()
    Path(path).rename(f"images/{path}")
    return list(qtool.load_data("images", transform="tests.mistakes.nets:tensor_of"))


def _external(path: str) -> Any:
    """Load a model whose weights are in `path`."""
    tensor = onnx.numpy_helper.from_array(np.ones((4, 400), np.float32), "w")
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    model = parser.parse_model(
        f"{head} g (float[n, 4] x) => (float[n, 400] y) {{ y = MatMul (x, w) }}"
    )
    model.graph.initializer.append(tensor)
    data = Path(path).read_bytes()
    Path(path).unlink()
    onnx.save(model, "net.onnx", save_as_external_data=True, location=path, size_threshold=0)
    Path(path).write_bytes(data)
    with pytest.raises(qtool.FileError, match=r"^net\.onnx: weights\.data "):
        qtool.inspect("net.onnx")
    return qtool.load_model("net.onnx")


def _folder(name: str) -> Callable[[str], Any]:
    """Return a call that loads a folder of transformers with `path` as the file `name`."""

    def load(path: str) -> Any:
        config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 8}
        Path("bert").mkdir()
        Path("bert/config.json").write_text(json.dumps(config))
        save_file({"w": torch.zeros(2)}, "bert/model.safetensors")
        Path("bert", name).write_bytes(Path(path).read_bytes())
        if name == "tokenizer.json":
            Path("texts.txt").write_text("a cat\n")
            return qtool.load_data("texts.txt", folder="bert")
        return qtool.load_model("bert")

    return load


READERS: dict[str, tuple[Callable[[str], Any], Callable[[], bytes] | None]] = {
    "net.onnx": (qtool.load_model, _onnx),
    "int8.onnx": (qtool.inspect, _onnx),
    "weights.data": (_external, lambda: bytes(1600)),
    "net.pt2": (qtool.load_model, _pt2),
    "state.safetensors": (_weights, lambda: save(image_net().state_dict())),
    "state.pt": (_weights, _pt),
    "int8.tflite": (qtool.verify, _tflite),
    "c.calib": (qtool.Calibration.load, lambda: calibration().to_bytes()),
    "x.npy": (_rows, lambda: _array("npy")),
    "x.npz": (_rows, lambda: _array("npz")),
    "t.csv": (_rows, lambda: b"a,b\n" + b"1.5,2.5\n" * 9 + b"1.5"),
    "t.json": (_rows, lambda: b"[" + b'{"a": 1.5},' * 9 + b'{"a"'),
    "t.jsonl": (_rows, lambda: b'{"a": 1.5}\n' * 9 + b'{"a"'),
    "t.parquet": (_rows, _parquet if find_spec("pyarrow") else None),
    "picture.png": (_images, lambda: _picture("PNG")),
    "picture.jpg": (_images, lambda: _picture("JPEG")),
    "shard.safetensors": (_folder("model.safetensors"), lambda: save(nn.Linear(9, 9).state_dict())),
    "config.json": (_folder("config.json"), None),
    "tokenizer.json": (_folder("tokenizer.json"), None),
}
"""Name of a file -> what reads it, and its bytes to cut in half; texts are cut already."""


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("name", READERS)
def test_an_answer_of_a_server(name: str, answer: tuple[bytes, str, str], folder: Path) -> None:
    data, said, remedy = answer
    (folder / name).write_bytes(data)
    _check(lambda: READERS[name][0](name), said, remedy)


@pytest.mark.parametrize("name", [n for n in READERS if not n.endswith(("json", "csv", "jsonl"))])
def test_a_message_of_a_server(name: str, folder: Path) -> None:
    (folder / name).write_bytes(TEXT[0])
    _check(lambda: READERS[name][0](name), *TEXT[1:])


@pytest.mark.parametrize("name", [n for n, (_, whole) in READERS.items() if whole is not None])
def test_the_first_part_of_a_file(name: str, folder: Path) -> None:
    whole = READERS[name][1]
    assert whole is not None
    data = whole()
    is_text = Path(name).suffix in (".csv", ".json", ".jsonl")
    (folder / name).write_bytes(data if is_text else data[: len(data) // 2])
    _check(lambda: READERS[name][0](name), "", "download it again")


def _check(call: Callable[[], Any], said: str, remedy: str) -> None:
    with pytest.raises(qtool.QtoolError) as caught:
        call()
    assert said in str(caught.value)
    assert any(remedy in str(r) for r in caught.value.remedies), caught.value


@pytest.mark.parametrize("make", [_onnx, _pt2, _pt, lambda: save(image_net().state_dict())])
def test_whole_files_are_no_answers(make: Callable[[], bytes], folder: Path) -> None:
    for name in ("a.onnx", "a.bin"):
        (folder / name).write_bytes(make())
        check_download(name, qtool.FileError)


def test_a_text_of_web_pages_is_data(folder: Path) -> None:
    (folder / "pages.txt").write_bytes(PAGE)
    check_download("pages.txt", qtool.FileError)
