"""The files and folders that commands name wrongly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.mistakes.nets import calibration


def prepare() -> None:
    """Write the files that the commands name."""
    for name in ("text.onnx", "text.pt", "text.pt2", "text.safetensors", "text.npy", "text.npz"):
        Path(name).write_text("this is a text")
    for name in ("text.txt", "table.csv", "data.zip", "net.tflite", "data.onnx", "state.onnx"):
        Path(name).write_text("a,b\n1,2\n")
    for name in ("empty.onnx", "empty.pt"):
        Path(name).touch()
    Path("folder").mkdir()
    Path("folder/readme.txt").write_text("hello")
    Path("empty").mkdir()
    net = nn.Linear(3, 2)
    torch.save(net, "whole.pt")
    torch.save(net.state_dict(), "state.pt")
    _save_images()
    Path("blank.txt").write_text("\n \n")
    Path("texts.txt").write_text("a cat\na dog\n")
    Path("binary.txt").write_bytes(b"\xff\xfe\x80")
    Path("broken.jsonl").write_text('{"text": \n')
    Path("lists.jsonl").write_text("[1]\n")
    Path("columns.jsonl").write_text('{"body": "a cat"}\n')
    Path("broken.toml").write_text("[[rules]\n")
    Path("broken.json").write_text("{")
    Path("layer.toml").write_text('[[rules]]\nselect = "layer9.*"\nas = "float"\n')
    Path("operator.toml").write_text('[[rules]]\nop = "convolution"\nas = "float"\n')
    Path("table.toml").write_text('[rules]\nselect = "0"\nas = "float"\n')
    Path("bits.toml").write_text('[[rules]]\nselect = "0"\nweights = "int3"\n')
    Path("config.toml").write_text('target = "tflit"\n')
    Path("key.toml").write_text('[[rules]]\nlayer = "0"\nas = "float"\n')
    Path("scheme.toml").write_text('[[rules]]\nselect = "0"\nas = "int7"\n')
    Path("setting.toml").write_text('colour = "red"\n')
    Path("circle.onnx").symlink_to("circle.onnx")
    calibration().save("net.calib")


def _save_images() -> None:
    from tests.mistakes.nets import image_net

    state = image_net().state_dict()
    torch.save({k: v[:1] if v.dim() else v for k, v in state.items()}, "sizes.pt")
    torch.save({k: v for k, v in state.items() if not k.startswith("4")}, "part.pt")
    torch.save({"optimizer": {"lr": 0.1}, "epoch": 3}, "optimizer.pt")
    generator = np.random.default_rng(0)
    images = generator.standard_normal((8, 3, 8, 8), np.float32)
    np.save("objects.npy", np.array([object()], object), allow_pickle=True)
    np.save("words.npy", np.array(["cat", "dog"]))
    np.save("scalar.npy", np.float32(3))
    np.savez("lengths.npz", x=images, y=images[:3])
    np.savez("two.npz", left=images, right=images)
    np.save("bytes.npy", (images * 9).clip(0).astype(np.uint8))
    np.save("grey.npy", images[:, :1])
    np.save("nhwc.npy", images.transpose(0, 2, 3, 1))
    np.save("large.npy", np.zeros((8, 3, 9, 9), np.float32))
    from safetensors.torch import save_file

    save_file(nn.Linear(3, 2).state_dict(), "state.safetensors")
    _save_float()


def _save_float() -> None:
    import onnx

    shape = ["n", 4]
    value = [onnx.helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g", *([v] for v in value)
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, "float.onnx")
    np.save("vectors.npy", np.ones((8, 4), np.float32))
