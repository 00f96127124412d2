"""Mistakes outside of the model and the data: packages, folders of models, forms of files."""

import os
import sys
import types
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.atomic import check_writable
from qtool.core.errors import CaptureError
from qtool.frontends.optional_packages import require
from tests.mistakes.mistake import Case, cases, check_refused
from tests.mistakes.nets import quantize

NET = "tests.mistakes.nets:flat_net"
ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.2-1B"}'
OWN_CODE = '{"auto_map": {"AutoModel": "x.X"}, "model_type": "own"}'
OTHER, FILE = "CaptureError OtherFile", "CaptureError OtherFile OtherFile"
NMS = "operator torchvision::nms does not exist"
QUANTIZED = {
    "bitsandbytes": '"load_in_4bit": true',
    "hqq": '"quant_method": "hqq"',
}
"""Tool that quantized weights -> its configuration."""


def leaves() -> None:
    sys.exit("usage: train.py")


def _broken(error: Exception) -> object:
    def fails(name: str) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtool.frontends.optional_packages.import_module", fails)
        return require("torchvision", "the model", CaptureError)


def _imported(code: str) -> object:
    Path("mistaken_module.py").write_text(code)
    try:
        return qtool.load_model("mistaken_module:net")
    finally:
        os.remove("mistaken_module.py")  # noqa: PTH107
        sys.modules.pop("mistaken_module", None)


def _folder(config: str, weights: str = "", task: str | None = None) -> types.ModuleType:
    Path("hub").mkdir()
    Path("hub/config.json").write_text(config)
    Path("hub", weights or "model.safetensors").write_bytes(bytes(9))
    return qtool.load_model("hub", task=task)


def _hub(files: dict[str, str]) -> object:
    Path("hub").mkdir()
    for name, text in files.items():
        Path("hub", name).write_text(text)
    return qtool.load_model("hub")


def _file(name: str, task: str | None = None) -> object:
    Path(name).touch()
    return qtool.load_model(name, task=task)


def _folder_that_fails(cause: str) -> object:
    def fails(*args: object) -> None:
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'") from RuntimeError(cause)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtool.frontends.huggingface.model_folder._transformers", fails)
        return _folder("{}")


def _renamed(name: str, new: str) -> str:
    Path(new).symlink_to(Path(name).resolve())
    return new


REFUSED: list[Case] = [
    (lambda: _broken(ImportError("libfoo.so: cannot open")), "CaptureError", "libfoo.so: cannot"),
    (lambda: _folder_that_fails(NMS), "CaptureError", NMS),
    (lambda: _imported("raise ValueError('no GPU')"), "CaptureError", "ValueError: no GPU (mis"),
    (lambda: _imported("def f(:"), "CaptureError", "cannot import mistaken_module:net: Syntax"),
    (lambda: _imported("import lightningg"), "CaptureError", "No module named 'lightningg'"),
    (lambda: _folder(OWN_CODE, task="fill-mask"), "CaptureError CallEdit", "hub needs code that"),
    (lambda: _folder("{"), "CaptureError", "hub/config.json cannot be read: Expecting"),
    (lambda: _folder("[]"), "CaptureError", "hub/config.json holds a list, not a configuration"),
    (lambda: _folder("{}", "pytorch_model.bin"), OTHER, "hub has no weights"),
    (lambda: _folder("{}", "model.gguf"), FILE, "hub/model.gguf is a GGUF file of llama.cpp"),
    (lambda: _file("model.gguf"), FILE, "model.gguf is a GGUF file of llama.cpp"),
    (lambda: _hub({"adapter_config.json": ADAPTER}), OTHER, "hub is an adapter (LORA) for meta"),
    (lambda: qtool.load_model("tests.mistakes.test_environment:leaves"), "CaptureError", "usage:"),
    (lambda: qtool.load_onnx("lite.onnx"), OTHER, "not a readable ONNX file"),
    (lambda: qtool.load_onnx("keras.onnx"), OTHER, "not a readable ONNX file"),
    (lambda: qtool.verify("torch.pt"), "FileError OtherFile", "torch.pt"),
    (lambda: qtool.Calibration.load("two.npz"), "CalibrationError OtherFile OtherFile", "two.npz"),
    (
        lambda: qtool.load_model(NET, _renamed("torch.pt", "n.safetensors")),
        FILE,
        "n.safetensors cannot be read as weights",
    ),
]


@pytest.mark.usefixtures("here")
@cases(REFUSED)
def test_refused(mistake, kind, names):
    check_refused(mistake, kind, names, writes=True)


@pytest.mark.parametrize("tool", QUANTIZED)
def test_weights_that_a_tool_quantized(tool: str) -> None:
    config = f'{{"quantization_config": {{{QUANTIZED[tool]}}}}}'
    said = f"hub holds weights that are quantized already, by {tool}, "
    check_refused(lambda: _folder(config, "model.safetensors"), OTHER, said, writes=True)


def test_a_device_is_no_misspelled_name() -> None:
    with pytest.raises(qtool.DataError) as caught:
        qtool.load_data("/dev/null")
    assert "did you mean" not in str(caught.value)


@pytest.mark.usefixtures("here")
def test_a_file_with_the_name_of_a_module_is_a_file() -> None:
    Path("net.py").touch()
    with pytest.raises(qtool.CaptureError, match=r"'net\.calib' is no model of PyTorch"):
        qtool.load_model("net.calib")


@pytest.mark.usefixtures("here")
def test_the_only_state_dict_of_a_checkpoint_is_taken() -> None:
    model = qtool.load_model(NET, weights="nested.pt")
    state = torch.load("torch.pt")
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())


@pytest.mark.usefixtures("here")
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
