"""Mistakes with recipes, calibrations and files to check, and with the paths of outputs."""

from __future__ import annotations

import pytest

from tests.mistakes.mistake import check_command
from tests.mistakes.path_files import prepare

N = "quantize tests.mistakes.nets:image_net"
D = "--data tests.mistakes.nets:images"
OUT = "-o out.onnx"
SLOW = "quantize tests.mistakes.nets:unloadable"
COMMANDS: dict[str, tuple[str, str]] = {
    "another suffix than the format's": (
        f"{N} {D} --format tflite {OUT}",
        "cannot write out.onnx: models are written as .tflite; name the file out.tflite",
    ),
    "weights next to a .tflite file": (
        f"{SLOW} {D} --external-data -o out.tflite",
        "out.tflite holds its weights itself; leave out --external-data",
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
    "explain a float file": (
        "explain float.onnx --model float.onnx --data vectors.npy",
        "float.onnx was not made by qtool; give the file that `qtool quantize` wrote",
    ),
    "a report of a float file alone": (
        "report float.onnx --data vectors.npy --samples 4 -o page",
        "float.onnx has no QuantizeLinear nodes; pass its float model with --model",
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
        "setting.toml: the recipe has the key ... accuracy, recover, slow_layers, parts, rules",
    ),
    "a recipe that is a folder": (
        f"{N} {D} --recipe folder {OUT}",
        "folder: cannot read the recipe: not a regular file",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    prepare()
    check_command(arguments, expected)
