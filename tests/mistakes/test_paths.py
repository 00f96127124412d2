"""Mistakes with files and folders: inputs that are not there or of another kind, outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.mistakes.mistake import check_command
from tests.mistakes.nets import calibration

N = "quantize tests.mistakes.nets:image_net"
D = "--data tests.mistakes.nets:images"
OUT = "-o out.onnx"
SLOW = "quantize tests.mistakes.nets:unloadable"
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
    "an address as data": (
        f"{N} --data https://example.com/x.npz {OUT}",
        "https://example.com/x.npz is an address; download it, and give the file or folder",
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
        "tests.mistakes.nets:images returns a list, not an nn.Module",
    ),
    "a module for a model": (
        f"quantize tests.mistakes:nets {D} {OUT}",
        "tests.mistakes:nets is a module, not a function or class that returns an nn.Module",
    ),
    "a pattern of names as data": (f"{N} --data *.npy {OUT}", "*.npy: no such file or folder"),
    "another suffix than the format's": (
        f"{N} {D} --format tflite {OUT}",
        "cannot write out.onnx: models are written as .tflite; name the file out.tflite",
    ),
    "weights next to a .tflite file": (
        f"{SLOW} {D} --external-data -o out.tflite",
        "out.tflite holds its weights itself; leave out --external-data",
    ),
    "a shape that the model does not take": (
        f"{N} --data none --shape 8 {OUT}",
        "Invalid value for --shape: the model does not take samples of the shape 8 (",
    ),
    "a rule for an operator that is not there": (
        f"{N} {D} --recipe operator.toml {OUT}",
        "selects no node; the operators of this model are conv, input, linear, pass, relu",
    ),
    "rules as one table": (
        f"{N} {D} --recipe table.toml {OUT}",
        "table.toml: the rules of a recipe must be a list; in TOML, start each with [[rules]]",
    ),
    "weights of three bits": (
        f"{N} {D} --recipe bits.toml {OUT}",
        'bits.toml: rule 1: weights = "int3" is unknown; known are int8, int4, int2, uint8',
    ),
    "a configuration that is not there": (
        f"{N} {D} --config no.toml {OUT}",
        "no.toml: no such configuration file",
    ),
    "a wrong value in a configuration": (
        f"{N} {D} --config config.toml {OUT}",
        "Invalid value for '--target': unknown target 'tflit'; did you mean 'tflite'?",
    ),
    "an unknown key in a configuration": (
        f"{N} {D} --config setting.toml {OUT}",
        "setting.toml: unknown key 'colour'; did you mean 'column'? There are: accuracy, action",
    ),
    "an input to fix that is not there": (
        "quantize float.onnx --data vectors.npy --fix z=3 -o out.onnx",
        "float.onnx: there is no input 'z' to fix; the inputs are x",
    ),
    "an input to fix without a value": (
        "quantize float.onnx --data vectors.npy --fix x -o out.onnx",
        "Invalid value for --fix: 'x' is not INPUT=VALUE, with a number, true, false or",
    ),
    "images for an ONNX file of vectors": (
        "quantize float.onnx --data large.npy -o out.onnx",
        "input 'x' of the file is float32[n, 4], ... give batches of that type and shape",
    ),
    "explain a float file": (
        "explain float.onnx --model float.onnx --data vectors.npy",
        "float.onnx was not made by qtool",
    ),
    "a report of a float file alone": (
        "report float.onnx --data vectors.npy --samples 4 -o page",
        "float.onnx has no QuantizeLinear nodes; pass its float model with --model",
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
    "data that is not there": (f"{N} --data images {OUT}", "images: no such file or folder"),
    "data without a name": (
        f"{N} --data tests.mistakes.nets:missing {OUT}",
        "cannot import tests.mistakes.nets:missing: ... has no attribute 'missing'",
    ),
    "data that is a number": (
        f"{N} --data tests.mistakes.nets:number {OUT}",
        "data of type int cannot be iterated over",
    ),
    "data that fails": (
        f"{N} --data tests.mistakes.nets:broken_images {OUT}",
        "reading batch 1 failed: OSError: the network drive is gone (...mistakes/nets.py, line",
    ),
    "data with NaN": (
        f"{N} --data tests.mistakes.nets:not_finite {OUT}",
        "batch 1, input 0 holds NaN; remove or repair that sample",
    ),
    "an empty folder": (
        f"{N} --data empty {OUT}",
        "empty has no data; supported files are .npy, ... .tiff, .gif, .wav, .flac, .ogg, .mp3",
    ),
    "a folder of texts": (
        f"{N} --data folder {OUT}",
        "folder has no data; supported files are .npy, ... .tiff, .gif, .wav, .flac, .ogg, .mp3",
    ),
    "a CSV": (
        f"{N} --data table.csv {OUT}",
        "the model does not run on the given inputs (input 0: float32[1, 2])",
    ),
    "a zip": (
        f"{N} --data data.zip {OUT}",
        "data.zip: data is a folder, a file of .npy, ... .jsonl, or package.module:function",
    ),
    "a tensor file": (
        f"{N} --data state.pt {OUT}",
        "state.pt: data is a folder, a file of .npy, ... .jsonl, or package.module:function",
    ),
    "a damaged .npy": (
        f"{N} --data text.npy {OUT}",
        "text.npy is a text ('this is a text'), not the .npy file; download the file itself",
    ),
    "a damaged .npz": (
        f"{N} --data text.npz {OUT}",
        "text.npz is a text ('this is a text'), not the .npz file; download the file itself",
    ),
    "pickled objects in .npy": (
        f"{N} --data objects.npy {OUT}",
        "objects.npy cannot be read as arrays: it is ... which are not loaded; save numbers",
    ),
    "texts in .npy": (
        f"{N} --data words.npy {OUT}",
        "an array of type <U3 cannot be a model input; give numbers",
    ),
    "one number in .npy": (
        f"{N} --data scalar.npy {OUT}",
        "scalar.npy: its array is a single number, not a list of samples",
    ),
    "arrays of several lengths": (
        f"{N} --data lengths.npz {OUT}",
        "lengths.npz: its arrays have different numbers of samples: {'x': 8, 'y': 3}",
    ),
    "two arrays for one input": (
        f"{N} --data two.npz {OUT}",
        "a batch has left, right, Sequential.forward ... or tuples in the order of the arguments",
    ),
    "images of bytes in .npy": (
        f"{N} --data bytes.npy {OUT}",
        "the model does not run on the given inputs ... / 255, so convert the batches with that",
    ),
    "images with channels last in .npy": (
        f"{N} --data nhwc.npy {OUT}",
        "the model does not run on the given inputs ... 1, 2), so convert the batches with that",
    ),
    "images of another size in .npy": (
        f"{N} --data large.npy {OUT}",
        "the model does not run on the given inputs ... cannot be multiplied (8x196 and 144x5)",
    ),
    "texts without a tokenizer": (
        f"{N} --data texts.txt {OUT}",
        "no preprocessing found for these texts; pass --processor, a folder with a tokenizer",
    ),
    "an empty text": (f"{N} --data blank.txt {OUT}", "blank.txt has no samples"),
    "a .txt that is not text": (
        f"{N} --data binary.txt {OUT}",
        "binary.txt cannot be read as text: ... 0xff in position 0: invalid start byte",
    ),
    "JSON lines that are no JSON": (
        f"{N} --data broken.jsonl {OUT}",
        "broken.jsonl, line 1 is not JSON: ... value: line 1 column 10 (char 9)",
    ),
    "JSON lines that are no objects": (
        f"{N} --data lists.jsonl {OUT}",
        "lists.jsonl, line 1 holds a list, not an object",
    ),
    "JSON lines of other columns": (
        f"{N} --data columns.jsonl {OUT}",
        (
            "columns.jsonl, line 1 has no text, image or sound in a column ... its columns are "
            "body; choose the text with --column body"
        ),
    ),
    "a processor that is not there": (
        f"{N} --data texts.txt --processor nowhere {OUT}",
        "no preprocessing found for these texts; pass --processor, a folder with a tokenizer",
    ),
    "a processor without a tokenizer": (
        f"{N} --data texts.txt --processor folder {OUT}",
        "folder has no tokenizer (no tokenizer.json, ... or give another folder with --processor",
    ),
    "labels that are not there": (
        "evaluate text.onnx --model tests.mistakes.nets:image_net --data two.npz --labels y",
        "two.npz holds no array 'y'; it holds left, right",
    ),
    "data that is not there, of a slow model": (
        f"{SLOW} --data nowhere.npz {OUT}",
        "nowhere.npz: no such file or folder",
    ),
    "evaluation data that is not there": (
        f"{SLOW} {D} --eval-data nowhere {OUT}",
        "nowhere: no such file or folder",
    ),
    "labels of another name": (
        f"{SLOW} {D} --eval-data two.npz --labels y {OUT}",
        "two.npz holds no array 'y'; it holds left, right",
    ),
    "labels in neither file": (
        f"{SLOW} --data nhwc.npy --labels y.npy {OUT}",
        "there is no labels file y.npy, and nhwc.npy is no .npz that could hold them",
    ),
    "labels of JSON lines by a column": (
        f"{SLOW} --data columns.jsonl --labels kind {OUT}",
        "columns.jsonl has no column 'kind'",
    ),
    "a quantized file that is not there": (
        "evaluate no.onnx --model tests.mistakes.nets:unloadable --data two.npz",
        "no.onnx: no such file",
    ),
    "output into a file": (
        f"{N} {D} -o text.onnx/out.onnx",
        "cannot write text.onnx/out.onnx: ... is not a directory; name another one",
    ),
    "output is a folder": (
        f"{N} {D} -o folder",
        "cannot write folder: it is a directory; name a file",
    ),
    "output without a suffix": (
        f"{N} {D} -o out",
        "cannot write out: models are ... .onnx or .tflite; name the file out.onnx",
    ),
    "output .pt": (
        f"{N} {D} -o out.pt",
        "cannot write out.pt: models are ... .onnx or .tflite; name the file out.onnx",
    ),
    "output .engine": (
        f"{N} {D} -o out.engine",
        "cannot write out.engine: models are ... or .tflite; name the file out.onnx",
    ),
    "output .xml": (
        f"{N} {D} --target openvino -o out.xml",
        "cannot write out.xml: models are ... or .tflite; name the file out.onnx",
    ),
    "output over the weights": (
        f"{N} {D} --weights state.onnx -o state.onnx",
        "cannot write state.onnx: state.onnx is an input; name another file",
    ),
    "output over the data": (
        f"{N} --data data.onnx -o data.onnx",
        "cannot write data.onnx: data.onnx is an input; name another file",
    ),
    "a name that is too long": (
        f"{N} {D} -o {'x' * 300}.onnx",
        "cannot write ... File name too long; name another file",
    ),
    "a circle of links": (
        f"{N} {D} -o circle.onnx",
        "cannot write 'circle.onnx': Symlink loop ... name another file",
    ),
    "a report into a folder with other files": (
        f"report text.onnx {D} -o folder",
        "folder holds 'readme.txt', which is not part of a report; choose a new folder",
    ),
    "a report into a file": (
        f"report text.onnx {D} -o text.txt",
        "cannot write text.txt: it is a file; choose a folder for the report",
    ),
    "a calibration that is not there": (
        f"convert tests.mistakes.nets:image_net --calibration no.calib {OUT}",
        "no.calib: no such calibration file",
    ),
    "a text as a calibration": (
        f"convert tests.mistakes.nets:image_net --calibration text.txt {OUT}",
        "text.txt: not a calibration file, or a damaged one (Error ... header too large)",
    ),
    "inspect a file that is not there": (
        "inspect no.onnx",
        "no.onnx: no such file",
    ),
    "inspect a text": (
        "inspect text.txt",
        "text.txt is neither a model (.onnx, .tflite) nor a calibration of qtool",
    ),
    "inspect a state dict": (
        "inspect state.pt",
        "state.pt is neither a model (.onnx, .tflite) nor a calibration of qtool",
    ),
    "inspect an image that is not there": ("inspect no.png", "no.png: no such file"),
    "a calibration with the name of a model": (
        f"calibrate tests.mistakes.nets:image_net {D} -o net.onnx",
        "net.onnx is the name of a model; name the calibration net.calib, or use `qtool quantize`",
    ),
    "a file of TensorFlow": (
        f"quantize net.pb {D} {OUT}",
        "net.pb is a file of TensorFlow, which tf2onnx converts to ONNX; qtool reads PyTorch and",
    ),
    "empty weights": (
        f"{N} --weights empty.pt {D} {OUT}",
        "empty.pt is empty; download it again",
    ),
    "grey images": (
        f"{N} --data grey.npy {OUT}",
        "the model does not run on the given inputs ... 3 channels, but got 1 channels instead",
    ),
    "a calibration of another network": (
        "convert tests.mistakes.nets:flat_net --calibration net.calib -o out.onnx",
        "the calibration was made with another model, one that takes input: float32[batch",
    ),
    "verify a file that is not there": ("verify no.onnx", "no.onnx: no such file"),
    "verify a text": (
        "verify text.onnx",
        "text.onnx is a text ('this is a text'), not the .onnx file; download the file itself",
    ),
    "verify a float file": (
        "verify float.onnx",
        "float.onnx: it has no quantized ... file that `qtool quantize` wrote",
    ),
    "a recipe that is not there": (
        f"{N} {D} --recipe no.toml {OUT}",
        "no.toml: no such recipe file",
    ),
    "a recipe of another kind": (
        f"{N} {D} --recipe text.txt {OUT}",
        "text.txt: a recipe must be a .toml or .json file",
    ),
    "a recipe that is not TOML": (
        f"{N} {D} --recipe broken.toml {OUT}",
        "broken.toml: not TOML (Expected ']]' at ... declaration (at line 1, column 8))",
    ),
    "a recipe that is not JSON": (
        f"{N} {D} --recipe broken.json {OUT}",
        "broken.json: not JSON (Expecting ... quotes: line 1 column 2 (char 1))",
    ),
    "a recipe for a layer that is not there": (
        f"{N} {D} --recipe layer.toml {OUT}",
        "rule 1 of the recipe (select = ... no node; the plan lists all names",
    ),
    "a calibration for another target": (
        "convert tests.mistakes.nets:image_net --calibration net.calib -o out.tflite",
        "the calibration was made for target onnxruntime, ... again with --target tflite",
    ),
    "a recipe with an unknown key": (
        f"{N} {D} --recipe key.toml {OUT}",
        "key.toml: rule 1 has the key 'layer'; known are ... block, observer, weight_observer",
    ),
    "a recipe with an unknown scheme": (
        f"{N} {D} --recipe scheme.toml {OUT}",
        'scheme.toml: rule 1: as = "int7" is unknown; ... dynamic, int8-weights, int4-weights',
    ),
    "a recipe with an unknown setting": (
        f"{N} {D} --recipe setting.toml {OUT}",
        "setting.toml: the recipe has the key ... mode, accuracy, recover, slow_layers, rules",
    ),
    "a recipe that is a folder": (
        f"{N} {D} --recipe folder {OUT}",
        "folder: cannot read the recipe: not a regular file",
    ),
}


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


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    prepare()
    check_command(arguments, expected)
