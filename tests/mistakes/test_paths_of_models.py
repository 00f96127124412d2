"""Mistakes with models and weights: names, files and folders, not there or of another kind."""

from __future__ import annotations

import pytest

from tests.mistakes.mistake import check_command
from tests.mistakes.path_files import prepare

N = "quantize tests.mistakes.nets:image_net"
D = "--data tests.mistakes.nets:images"
OUT = "-o out.onnx"
COMMANDS: dict[str, tuple[str, str]] = {
    "a module that is not there": (
        f"quantize nowhere:net {D} {OUT}",
        "cannot import nowhere:net: ... 'nowhere', or install that package",
    ),
    "a name that is not there": (
        f"quantize tests.mistakes.nets:img_net {D} {OUT}",
        "cannot import tests.mistakes.nets:img_net: ... 'img_net'; did you mean 'image_net'?",
    ),
    "a path to a .py file": (
        f"quantize tests/mistakes/nets.py {D} {OUT}",
        "tests/mistakes/nets.py is a file of Python ... the model: tests.mistakes.nets:factory",
    ),
    "a path with a colon": (
        f"quantize tests/mistakes/nets.py:image_net {D} {OUT}",
        "cannot import tests/mistakes/nets.py:image_net: ... not the path of its file",
    ),
    "a module without a name": (
        f"quantize tests.mistakes.nets {D} {OUT}",
        "tests.mistakes.nets is a module of Python; ... the model: tests.mistakes.nets:factory",
    ),
    "a number for a factory": (
        f"quantize tests.mistakes.nets:number {D} {OUT}",
        "tests.mistakes.nets:number is a int, not a ... or class that returns an nn.Module",
    ),
    "a factory that needs arguments": (
        f"quantize tests.mistakes.nets:custom {D} {OUT}",
        "tests.mistakes.nets:custom needs 'function'; write tests.mistakes.nets:custom(VALUE, ...)",
    ),
    "a call without a closing bracket": (
        f"quantize tests.mistakes.nets:image_net( {D} {OUT}",
        "cannot import tests.mistakes.nets:image_net(: ... 'image_net('; did you mean 'image_net'?",
    ),
    "a call with a name": (
        f"quantize tests.mistakes.nets:custom(relu) {D} {OUT}",
        "cannot read the call ... a number, a text, a list or a dict",
    ),
    "an address": (
        f"quantize https://example.com/net.onnx {D} {OUT}",
        "https://example.com/net.onnx is an address; download it, and give the file or folder",
    ),
    "no module": (f"quantize :net {D} {OUT}", ":net is half a name; write package.module:name"),
    "no name": (
        f"quantize tests.mistakes.nets: {D} {OUT}",
        "tests.mistakes.nets: is half a name; write package.module:name",
    ),
    "a class that needs arguments": (
        f"quantize torch.nn:Linear {D} {OUT}",
        "torch.nn:Linear needs 'in_features' and 'out_features'; write torch.nn:Linear(VALUE, ...)",
    ),
    "data for a model": (
        f"quantize tests.mistakes.nets:images {D} {OUT}",
        "tests.mistakes.nets:images returns a list; let it return the model, an nn.Module",
    ),
    "a module for a model": (
        f"quantize tests.mistakes:nets {D} {OUT}",
        "tests.mistakes:nets is a module, not a function or class that returns an nn.Module",
    ),
    "a shape that the model does not take": (
        f"{N} --data none --shape 8 {OUT}",
        "Invalid value for --shape: the model does not take samples of the shape 8 (",
    ),
    "an input to fix that is not there": (
        "quantize float.onnx --data vectors.npy --fix z=3 -o out.onnx",
        "float.onnx: there is no input 'z' to fix; the inputs are x",
    ),
    "an input to fix without a value": (
        "quantize float.onnx --data vectors.npy --fix x -o out.onnx",
        "Invalid value for --fix: 'x' is not INPUT=VALUE, with a number, true, false or",
    ),
    "a hub id": (
        f"quantize bert-base-uncased {D} {OUT}",
        "no such model: 'bert-base-uncased'; give ... bert-base-uncased --local-dir FOLDER`",
    ),
    "a hub id with an owner": (
        f"quantize meta-llama/Llama-3.2-1B {D} {OUT}",
        "no such model: 'meta-llama/Llama-3.2-1B'; give ... --local-dir FOLDER`",
    ),
    "a pickled model": (
        f"quantize whole.pt {D} {OUT}",
        "whole.pt is a file of weights or of pickled ... the state dict with --weights whole.pt",
    ),
    "a state dict as the model": (
        f"quantize state.pt {D} {OUT}",
        "state.pt is a file of weights or of pickled ... the state dict with --weights state.pt",
    ),
    "safetensors as the model": (
        f"quantize state.safetensors {D} {OUT}",
        "state.safetensors is a file of weights or of ... dict with --weights state.safetensors",
    ),
    "a checkpoint that is not there": (
        f"quantize last.ckpt {D} {OUT}",
        "last.ckpt is a file of weights or of pickled ... the state dict with --weights last.ckpt",
    ),
    "a program that is not there": (f"quantize net.pt2 {D} {OUT}", "net.pt2: no such file"),
    "a program that is no program": (
        f"quantize text.pt2 {D} {OUT}",
        "text.pt2 is a text ('this is a text'), not the .pt2 file; download the file itself",
    ),
    "an ONNX file that is not there": (f"quantize net.onnx {D} {OUT}", "net.onnx: no such file"),
    "a text called .onnx": (
        f"quantize text.onnx {D} {OUT}",
        "text.onnx is a text ('this is a text'), not the .onnx file; download the file itself",
    ),
    "an empty .onnx": (
        f"quantize empty.onnx {D} {OUT}",
        "empty.onnx is empty; download it again",
    ),
    "a TFLite file as the model": (
        f"quantize net.tflite {D} {OUT}",
        "net.tflite is a file of TFLite, which is a result of qtool; qtool reads PyTorch and ONNX",
    ),
    "a folder without config.json": (
        f"quantize folder {D} {OUT}",
        "folder holds no config.json; give the folder that save_pretrained wrote",
    ),
    "weights that are not there": (f"{N} --weights no.pt {D} {OUT}", "no.pt: no such weights file"),
    "a folder as weights": (f"{N} --weights folder {D} {OUT}", "folder: no such weights file"),
    "a text as weights": (
        f"{N} --weights text.pt {D} {OUT}",
        "text.pt is a text ('this is a text'), not the .pt file; download the file itself",
    ),
    "a text as safetensors": (
        f"{N} --weights text.safetensors {D} {OUT}",
        "text.safetensors is a text ('this is a text'), not the .safetensors file; download",
    ),
    "a pickled model as weights": (
        f"{N} --weights whole.pt {D} {OUT}",
        "whole.pt cannot be read as weights (it holds ... or torch.save(model.state_dict(), path)",
    ),
    "weights of another net": (
        f"{N} --weights state.pt {D} {OUT}",
        "state.pt does not fit Sequential: 0 of 9 ... 7 more); give the weights of this model",
    ),
    "weights of other sizes": (
        f"{N} --weights sizes.pt {D} {OUT}",
        "sizes.pt does not fit Sequential: 1 of 9 ... the model the sizes it was trained with",
    ),
    "a layer without weights": (
        f"{N} --weights part.pt {D} {OUT}",
        "part.pt does not fit Sequential: 7 of 9 ... give the weights of this model",
    ),
    "an optimizer's state": (
        f"{N} --weights optimizer.pt {D} {OUT}",
        "optimizer.pt has a dict of optimizer, ... path)",
    ),
    "weights for an ONNX file": (
        f"quantize text.onnx --weights state.pt {D} {OUT}",
        "text.onnx holds its own weights; leave out --weights",
    ),
    "a file of TensorFlow": (
        f"quantize net.pb {D} {OUT}",
        "net.pb is a file of TensorFlow, which tf2onnx converts to ONNX; qtool reads PyTorch and",
    ),
    "empty weights": (
        f"{N} --weights empty.pt {D} {OUT}",
        "empty.pt is empty; download it again",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    prepare()
    check_command(arguments, expected)
