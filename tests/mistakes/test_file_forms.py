"""Files of another form than their name says or their reader takes, and files under other names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import qtool
from qtool.core.atomic import check_writable
from tests.mistakes.mistake import Cases, check_command, check_refused
from tests.mistakes.nets import IMAGES, calibration, flat_net, quantize

NET = "tests.mistakes.nets:flat_net"
D, OUT = "--data vectors.npy", "-o out.onnx"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, net = tmp_path_factory.mktemp("files"), flat_net()
    state = net.state_dict()
    torch.save(state, place / "torch.pt")
    torch.save(net, place / "whole.pt")
    torch.save({"epoch": 3, "model_state": state, "optimizer": {"lr": 0.1}}, place / "nested.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that TorchScript will end
        torch.jit.trace(net, torch.ones(2, 12)).save(place / "script.pt")
    save_file(state, place / "state.safetensors")
    calibration().save(place / "net.calib")
    np.save(place / "vectors.npy", np.random.default_rng(0).normal(size=(40, 12)).astype("f4"))
    np.savez(place / "arrays.npz", x=IMAGES.numpy())
    for name in ("noise.bin", "noise.h5"):
        (place / name).write_bytes(bytes(range(1, 200)))
    (place / "lite.onnx").write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    (place / "keras.onnx").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    (place / "package").mkdir()
    (place / "package/saved_model.pb").write_bytes(bytes(9))
    (place / "net.mlpackage").mkdir()
    (place / "weights").mkdir()
    save_file(state, place / "weights/net.safetensors")
    return place


@pytest.fixture(autouse=True)
def here(files: Path, folder: Path) -> None:
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)


COMMANDS: dict[str, tuple[str, str]] = {
    "TorchScript as the model": (
        f"quantize script.pt {D} {OUT}",
        "script.pt is a file of TorchScript, ... torch.jit.load('script.pt').state_dict(), FILE)",
    ),
    "TorchScript as weights": (
        f"quantize {NET} --weights script.pt {D} {OUT}",
        "script.pt is a file of TorchScript, no state dict; save its state dict, torch.save(",
    ),
    "noise as weights": (
        f"quantize {NET} --weights noise.bin {D} {OUT}",
        "noise.bin cannot be read as weights (it is no file of torch.save); save a state dict",
    ),
    "a file of Keras as weights": (
        f"quantize {NET} --weights noise.h5 {D} {OUT}",
        "noise.h5 is a file of HDF5, as Keras writes it, no state dict; save a state dict",
    ),
    "a file of Keras": (
        f"quantize noise.h5 {D} {OUT}",
        "noise.h5 is a file of Keras, which tf2onnx converts to ONNX; qtool reads PyTorch and ONNX",
    ),
    "a SavedModel": (
        f"quantize package {D} {OUT}",
        "package is a SavedModel of TensorFlow; convert it to ONNX with tf2onnx, and give",
    ),
    "a package of Core ML": (
        f"quantize net.mlpackage {D} {OUT}",
        "net.mlpackage is a file of Core ML; qtool reads PyTorch and ONNX",
    ),
    "a folder of weights alone": (
        f"quantize weights {D} {OUT}",
        "weights holds no config.json; give the folder that save_pretrained wrote",
    ),
    "a point for the colon": (
        f"quantize tests.mistakes.nets.flat_net {D} {OUT}",
        "tests.mistakes.nets.flat_net lacks the colon behind the module; write tests.mistakes.nets",
    ),
    "a file of weights for its module": (
        f"quantize torch.pt:Net {D} {OUT}",
        "write the module of the code, and give this file with --weights torch.pt",
    ),
    "code for a file": (
        f"bench {NET}",
        f"{NET}: no such file; give a file: `qtool quantize` writes one of code",
    ),
    "code for a calibration": (
        f"convert {NET} --calibration {NET} {OUT}",
        f"{NET}: no such calibration file",
    ),
    "a name that a shell replaces": (
        f"quantize {NET} --data ~/x.npz {OUT}",
        f"~/x.npz: no such file or folder; write {Path.home()}/x.npz: only a shell replaces ~",
    ),
    "an output that a shell replaces": (
        f"quantize {NET} {D} -o ~/qtool/x.onnx",
        f"cannot write ~/qtool/x.onnx: only a shell replaces ~; name it {Path.home()}/qtool/x.onnx",
    ),
    "data without its suffix": (
        f"quantize {NET} --data vectors {OUT}",
        "vectors: no such file or folder; did you mean vectors.npy?",
    ),
    "weights misspelled": (
        f"quantize {NET} --weights touch.pt {D} {OUT}",
        "touch.pt: no such weights file; did you mean torch.pt?",
    ),
}
CALLS: Cases = {
    "TFLite under the name of ONNX": (
        lambda: qtool.load_onnx("lite.onnx"),
        "lite.onnx: not a readable ONNX file ... it is a file of TFLite; give the intended file",
    ),
    "Keras under the name of ONNX": (
        lambda: qtool.load_onnx("keras.onnx"),
        "keras.onnx: not a readable ONNX file ... it is a file of HDF5, as Keras writes it; give",
    ),
    "weights as an ONNX file": (
        lambda: qtool.load_onnx("torch.pt"),
        "torch.pt: not a readable ONNX file ... it is a file of torch.save; give the intended",
    ),
    "weights to inspect": (
        lambda: qtool.verify("torch.pt"),
        "torch.pt: not a readable ONNX file ... it is a file of torch.save; give the intended",
    ),
    "arrays as a calibration": (
        lambda: qtool.Calibration.load("arrays.npz"),
        "arrays.npz: not a calibration file ... it is arrays of NumPy; give the file that",
    ),
    "weights of torch.save called safetensors": (
        lambda: qtool.load_model(NET, weights=renamed("torch.pt", "new.safetensors")),
        "new.safetensors cannot be read as weights ... it is a file of torch.save; save a state",
    ),
}


def renamed(name: str, new: str) -> str:
    Path(new).unlink(missing_ok=True)
    Path(new).symlink_to(Path(name).resolve())
    return new


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    check_command(arguments, expected)


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_refused(call: Callable[[], object], expected: str) -> None:
    check_refused(call, expected, writes=True)


def test_a_path_is_no_name_of_a_hub() -> None:
    with pytest.raises(qtool.CaptureError) as caught:
        qtool.load_model("./llama-1b")
    assert "hf download" not in str(caught.value)


def test_a_device_is_no_misspelled_name() -> None:
    with pytest.raises(qtool.DataError) as caught:
        qtool.load_data("/dev/null")
    assert "did you mean" not in str(caught.value)


def test_a_file_with_the_name_of_a_module_is_a_file() -> None:
    Path("net.py").touch()
    with pytest.raises(qtool.CaptureError, match=r"net\.calib is no model: the suffix '\.calib'"):
        qtool.load_model("net.calib")


def test_the_only_state_dict_of_a_checkpoint_is_taken() -> None:
    model = qtool.load_model(NET, weights="nested.pt")
    state = torch.load("torch.pt")
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_the_remedies_work() -> None:
    torch.save(torch.jit.load("script.pt").state_dict(), "saved.pt")
    assert isinstance(qtool.load_model(NET, weights="saved.pt"), nn.Module)
    assert isinstance(qtool.load_model("tests.mistakes.nets:flat_net"), nn.Module)
    check_writable(os.path.expanduser("~/qtool/x.onnx"))  # noqa: PTH111
    Path("~").mkdir()
    check_writable("~/x.onnx")  # a folder of this name


def test_a_converted_saved_model_is_read() -> None:
    onnx.save(onnx.parser.parse_model(_GRAPH), "converted.onnx")
    assert quantize([torch.ones(40, 4)], qtool.load_model("converted.onnx"))


_GRAPH = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 3] y)
<float[4, 3] w = {0,1,2,3,4,5,6,7,8,9,10,11}> { y = MatMul (x, w) }"""
