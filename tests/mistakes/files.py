"""The files and folders that commands name wrongly."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper, parser
from safetensors.torch import save_file
from torch import nn

import qtool
from tests.mistakes.nets import IMAGES, calibration, flat_net, image_net, price_net, quantize, rows

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
NUMBERS = [[i / 8, 1 - i / 9, i % 3 / 2, i / 5] for i in range(40)]
TEXTS = {
    **{
        f"text.{suffix}": "this is a text"
        for suffix in ("onnx", "pt", "safetensors", "npz", "npy", "pt2")
    },
    **dict.fromkeys(("text.txt", "data.zip", "net.tflite", "state.onnx"), "a,b\n1,2\n"),
    **dict.fromkeys(("empty.onnx", "mynets.py"), ""),
    "folder/readme.txt": "hello",
    "blank.txt": "\n \n",
    "texts.txt": "a cat\na dog\n",
    "broken.jsonl": '{"text": \n',
    "lists.jsonl": "[1]\n",
    "columns.jsonl": '{"body": "a cat"}\n',
    "broken.toml": "[[rules]\n",
    "broken.json": "{",
    "absent.toml": '[[rules]]\nselect = "layer9.*"\nas = "float"\n',
    "layer.toml": '[[rules]]\nselect = "0"\nas = "float"\n',
    "float.toml": '[[rules]]\nselect = "*"\nas = "float"\n',
    "operator.toml": '[[rules]]\nop = "convolution"\nas = "float"\n',
    "table.toml": '[rules]\nselect = "0"\nas = "float"\n',
    "bits.toml": '[[rules]]\nselect = "0"\nweights = "int3"\n',
    "key.toml": '[[rules]]\nlayer = "0"\nas = "float"\n',
    "scheme.toml": '[[rules]]\nselect = "0"\nas = "int7"\n',
    "bert/config.json": "{}",
    "own/config.json": '{"model_type": "bert", "architectures": ["OwnBert"]}',
    "sounds/a.wav": "",
}
BYTES = {
    "binary.txt": b"\xff\xfe\x80",
    "noise.bin": bytes(range(1, 200)),
    "noise.h5": bytes(range(1, 200)),
    "lite.onnx": b"\x1c\0\0\0TFL3" + bytes(40),
    "keras.onnx": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "package/saved_model.pb": bytes(9),
    "pets/cat/a.png": bytes(9),
    "photos/a.png": bytes(9),
    "photos/b.png": bytes(9),
}


def write(folder: Path) -> None:
    """Write the files that the tables name, always the same."""
    torch.manual_seed(0)
    for name in ("empty", "net.mlpackage", "weights", *map(str, map(_parent, (*TEXTS, *BYTES)))):
        Path(folder, name).mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        Path(folder, name).write_text(text)
    for name, data in BYTES.items():
        Path(folder, name).write_bytes(data)
    Path(folder, "circle.onnx").symlink_to("circle.onnx")
    calibration().save(folder / "net.calib")
    quantize([IMAGES], image_net()).export(folder / "int8.onnx")
    quantize([IMAGES], rows()).export(folder / "rows.onnx")
    inputs = torch.tensor([row[:3] for row in NUMBERS])
    quantize([inputs], price_net()).export(folder / "price.onnx")
    _write_weights(folder)
    _write_arrays(folder)
    _write_tables(folder)
    _write_graphs(folder)


def _parent(name: str) -> Path:
    return Path(name).parent


def _write_weights(folder: Path) -> None:
    net, state, flat = nn.Linear(3, 2), image_net().state_dict(), flat_net()
    weights = {
        "whole.pt": net,
        "state.pt": nn.Linear(4, 3).state_dict(),
        "sizes.pt": {k: v[:1] if v.dim() else v for k, v in state.items()},
        "part.pt": {k: v for k, v in state.items() if not k.startswith("4")},
        "optimizer.pt": {"optimizer": {"lr": 0.1}, "epoch": 3},
        "torch.pt": flat.state_dict(),
        "nested.pt": {"epoch": 3, "model_state": flat.state_dict(), "optimizer": {"lr": 0.1}},
    }
    for name, value in weights.items():
        torch.save(value, folder / name)
    for name in ("state.safetensors", "weights/net.safetensors", "own/model.safetensors"):
        save_file(net.state_dict(), folder / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that TorchScript will end
        torch.jit.trace(flat, torch.ones(2, 12)).save(folder / "script.pt")


def _write_arrays(folder: Path) -> None:
    images = IMAGES.numpy()
    scaled = images * 50 + 128
    arrays = {
        "images": images,
        "nhwc": images.transpose(0, 2, 3, 1),
        "bytes": scaled.clip(0, 255).astype(np.uint8),
        "integers": scaled.astype(np.int32),
        "small": images[..., 1:7, 1:7],
        "labels": np.arange(40) % 5,
        "words": np.array(["cat", "dog"]),
        "scalar": np.float32(3),
        "grey": images[:, :1],
        "large": np.zeros((8, 3, 9, 9), np.float32),
        "vectors": np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32),
        "flat": np.random.default_rng(0).normal(size=(40, 12)).astype(np.float32),
        "nan": np.full((4, 3, 8, 8), np.nan, np.float32),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "objects.npy", np.array([object()], object), allow_pickle=True)
    np.savez(folder / "lengths.npz", x=images, y=images[:3])
    np.savez(folder / "two.npz", left=images, right=images)
    np.savez(folder / "shapes.npz", image=images, label=arrays["labels"])
    np.savez(folder / "kinds.npz", image=images, kind=np.arange(40) % 4)
    np.savez(folder / "labelled.npz", images=images, labels=arrays["labels"])


def _write_tables(folder: Path) -> None:
    rows = [[*row, "Rome"] for row in NUMBERS]
    write_table(folder / "prices.csv", "a,b,c,price", NUMBERS)
    write_table(folder / "numbered.csv", "id,a,b,c,price", [[i, *r] for i, r in enumerate(NUMBERS)])
    write_table(folder / "titles.csv", "title,body,label", [["a cat", "a dog", 0]] * 40)
    write_table(folder / "homes.csv", "a,b,c,price,city", rows)
    write_table(folder / "city.csv", "a,b,city,price", [[*r[:2], "Rome", r[3]] for r in rows])
    write_table(folder / "index.csv", ",a,b,c,price,city", [[i, *r] for i, r in enumerate(rows)])


def write_table(path: Path, head: str, rows: Sequence[list[Any]]) -> None:
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))


def _write_graphs(folder: Path) -> None:
    vectors = np.load(folder / "vectors.npy")
    np.savez(folder / "branches.npz", x=vectors[:1], n=[3])
    np.savez(folder / "threshold.npz", x=vectors[:1], s=np.float32([3]))
    linear = "y = MatMul (x, w)"
    rounded = "q = QuantizeLinear (w, step, zero) d = DequantizeLinear (q, step, zero)"
    then, other = (f"(float[n, 3] {r}) {{ {r} = MatMul (x, w) }}" for r in "te")
    branch = f"y = If (c) <then_branch = a () => {then}, else_branch = b () => {other}>"
    graphs = {
        "float": ("float[n, 4] x", linear),
        "weights": ("float[n, 4] x", f"{rounded} y = MatMul (x, d)"),
        "draws": ("float[n, 4] x", "r = RandomNormalLike (x) y = MatMul (r, w)"),
        "one": ("float[n, 4] x", "r = Reshape (x, sizes) y = MatMul (r, w)"),
        "four": ("float[4, 4] x", linear, "float[4, 3] y"),
        "open": ("float[n, m, 4] x", linear, "float[n, m, 3] y"),
        "texts": ("string[n] t, float[n, 4] x", f"{linear} u = Identity (t)"),
        "branches": ("float[n, 4] x, int64[1] n", f"c = Greater (n, one) {branch}"),
        "threshold": (
            "float[n, 4] x, float[1] s",
            f"o = CastLike (one, s) c = Greater (s, o) {branch}",
        ),
    }
    for name, (inputs, nodes, *outputs) in graphs.items():
        _save_graph(folder / f"{name}.onnx", inputs, nodes, *outputs)
    model = qtool.load_onnx(folder / "float.onnx")
    qtool.calibrate(model, [torch.from_numpy(vectors)]).save(folder / "float.calib")
    _save_images(folder / "image.onnx", "x", (192, 5), "f = Flatten (x) y = MatMul (f, w)")
    _save_images(
        folder / "classes.onnx", "image", (4, 3, 8, 8), "c = Conv (image, w) y = Flatten (c)"
    )


def _save_images(path: Path, name: str, sizes: tuple[int, ...], nodes: str) -> None:
    """Save a float classifier of images."""
    model = parser.parse_model(
        f"{HEAD} g (float[n, 3, 8, 8] {name}) => (float[n, classes] y) {{ {nodes} }}"
    )
    weight = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)


def _save_graph(path: Path, inputs: str, nodes: str, output: str = "float[n, 3] y") -> None:
    weights = ", ".join(str(k / 10) for k in range(12))
    constants = f"float[4, 3] w = {{{weights}}}, int64[1] one = {{1}}, int64[2] sizes = {{1, 4}}"
    constants += ", float step = {0.01}, int8 zero = {0}"
    onnx.save(
        parser.parse_model(f"{HEAD} g ({inputs}) => ({output}) <{constants}> {{ {nodes} }}"), path
    )
