"""Mistakes in Python: arguments of the public functions."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from tests.mistakes.mistake import Cases, check_refused
from tests.mistakes.nets import IMAGES, calibration, captured, flat_net, image_net, quantize

D = [IMAGES]
REFUSED: Cases = {
    "a dynamic input by its number": (
        lambda: qtool.quantize(image_net(), D, dynamic={5: {0: "b"}}),
        "dynamic is {5: {0: 'b'}}; give a dict of inputs ... such as {'tokens': {1: 'length'}}",
    ),
    "a quantized model in a pickle": (
        lambda: pickle.dumps(quantize(D)),
        "a QuantizedModel cannot be pickled (torch.save, ... the weights",
    ),
    "a captured model in a pickle": (
        lambda: pickle.dumps(captured()),
        "a Captured cannot be pickled (torch.save, ... send the model, and capture it there",
    ),
    "a target misspelled": (
        lambda: quantize(D, target="tflight"),
        "unknown target 'tflight'; did you mean ... tensorrt, tflite, tflite-micro, qnn",
    ),
    "a target that is no text": (
        lambda: quantize(D, target=3),
        "unknown target '3'; there are: onnxruntime, ... tensorrt, tflite, tflite-micro, qnn",
    ),
    "an observer misspelled": (
        lambda: quantize(D, observer="max"),
        "unknown observer 'max'; did you mean 'minmax'? ... mse, entropy, gaussian, laplace",
    ),
    "an observer that is no text": (
        lambda: quantize(D, observer=99.9),
        "observer is 99.9; give one by name",
    ),
    "a mode misspelled": (
        lambda: quantize(D, mode="weights-only"),
        'mode = "weights-only" is unknown; known are ... dynamic, weight-only, weight-only-int4',
    ),
    "an effort misspelled": (
        lambda: qtool.quantize(captured(), D, accuracy="high"),
        'accuracy = "high" is unknown; known are fast, balanced, best',
    ),
    "a step misspelled": (
        lambda: qtool.quantize(captured(), D, recover=["adaround"]),
        "unknown recovery step 'adaround'; did ... learned-scales",
    ),
    "steps as one text": (
        lambda: qtool.quantize(captured(), D, recover="gptq"),
        "recover is 'gptq'; it must be a list of step names",
    ),
    "a recipe that is a number": (
        lambda: quantize(D, recipe=8),
        "the rules of a recipe must be a list; in TOML, start each with [[rules]]",
    ),
    "a rule that is a text": (
        lambda: quantize(D, recipe=["float"]),
        "rule 1 is 'float'; it must be a table with ... block, observer, weight_observer",
    ),
    "a rule without a selection": (
        lambda: quantize(D, recipe=[{"as": "float"}]),
        "rule 1: it selects nothing; add select, op or both",
    ),
    "a rule without an effect": (
        lambda: quantize(D, recipe=[{"select": "0"}]),
        "rule 1: it changes nothing; add one of as, ... block, observer, weight_observer",
    ),
    "a rule for no layer": (
        lambda: quantize(D, recipe=[{"select": "layer9", "as": "float"}]),
        "rule 1 of the recipe (select = ... no node; the plan lists all names",
    ),
    "a rule of an unknown scheme": (
        lambda: quantize(D, recipe=[{"select": "0", "as": "int7"}]),
        'rule 1: as = "int7" is unknown; known are ... dynamic, int8-weights, int4-weights',
    ),
    "a rule with an unknown key": (
        lambda: quantize(D, recipe=[{"select": "0", "as": "float", "bits": 4}]),
        "rule 1 has the key 'bits'; known are select, ... block, observer, weight_observer",
    ),
    "all layers in float": (
        lambda: quantize(D, recipe=[{"select": "*", "as": "float"}]),
        "nothing in this model can run in ... leave out the rules of 'recipe' that keep its layers",
    ),
    "a regex that does not end": (
        lambda: quantize(D, recipe=[{"select": "/(a+)+$/", "as": "float"}]),
        "rule 1 of the recipe (select = ... no node; the plan lists all names",
    ),
    "an export to no path": (
        lambda: quantize(D).export(None),
        "path is None; give a path as a str or a pathlib.Path",
    ),
    "an export of another suffix": (
        lambda: quantize(D).export("model.pth"),
        "cannot write model.pth: models are ... as .onnx; name the file model.onnx",
    ),
    "an export into a folder": (
        lambda: quantize(D).export("."),
        "cannot write .: it is a directory; name a file",
    ),
    "an export of an unknown format": (
        lambda: quantize(D).export("m.onnx", format="int8"),
        "target onnxruntime does not support format 'int8'; it supports: qdq, qoperator",
    ),
    "a calibration of another model": (
        lambda: qtool.convert(flat_net(), calibration()),
        "the model does not run on the given inputs ... cannot be multiplied (96x8 and 12x8)",
    ),
    "a calibration of other weights": (
        lambda: qtool.convert(_other_weights(), calibration()),
        "the calibration was made with another ... weights; calibrate this model first",
    ),
    "a calibration for another target": (
        lambda: qtool.convert(captured(), calibration(), target="tflite"),
        "the calibration was made for target onnxruntime, ... calibrate again with target='tflite'",
    ),
    "a calibration that is a dict": (
        lambda: qtool.convert(captured(), {}),
        "the calibration is a dict; give what qtool.calibrate returned, or qtool.quantize(model,",
    ),
    "a calibration that is not there": (
        lambda: qtool.convert(captured(), "no.calib"),
        "no.calib: no such calibration file",
    ),
    "verify None": (
        lambda: qtool.verify(None),
        "file is None; give a path as a str or a pathlib.Path",
    ),
    "verify a file that is not there": (
        lambda: qtool.verify("model.onnx"),
        "model.onnx: no such file",
    ),
    "inspect a model": (
        lambda: qtool.inspect(image_net()),
        "file is of the type Sequential; give a path as a str or a pathlib.Path",
    ),
    "an export to two paths": (
        lambda: quantize(D).export(["a.onnx"]),
        "path is of the type list; give a path as a str or a pathlib.Path",
    ),
    "no threads": (
        lambda: qtool.evaluate("out.onnx", image_net(), D, threads=0),
        "threads is 0; give a whole number of at least 1",
    ),
    "seconds below zero": (
        lambda: qtool.evaluate("out.onnx", image_net(), D, seconds=-1),
        "seconds is -1; give a finite number of at least 0",
    ),
    "bench of a path": (lambda: qtool.bench("a.onnx"), "files is 'a.onnx'; give a list of paths"),
    "options as a dict": (
        lambda: qtool.quantize_to_file(image_net(), D, "out.onnx", {"mode": "static"}),
        "options is a dict; give qtool.QuantizeOptions(...)",
    ),
    "a file's options as a dict": (
        lambda: qtool.quantize_to_file(image_net(), D, "out.onnx", file={"format": "qdq"}),
        "file is a dict; give qtool.FileOptions(...)",
    ),
    "a goal as a text": (
        lambda: qtool.FileOptions(min_sqnr="30"),
        "FileOptions.min_sqnr is '30'; give a finite number or None",
    ),
    "a time below zero": (
        lambda: qtool.FileOptions(timing=-3),
        "FileOptions.timing is -3; give a finite number of at least 0",
    ),
    "data that is a name of nothing": (
        lambda: qtool.quantize_to_file(image_net(), "nodata", "out.onnx"),
        "nodata: no such file or folder",
    ),
    "an observer as a tuple": (
        lambda: quantize(D, observer=("percentile", 99)),
        "observer is ('percentile', 99); give one by name",
    ),
    "an option that an observer lacks": (
        lambda: quantize(D, observer="percentile:q=3"),
        "observer 'percentile' has no option 'q'; its options: p, bins",
    ),
    "a step that is None": (
        lambda: qtool.quantize(captured(), D, recover=[None]),
        "recover is (None,); it must be a list of step names",
    ),
    "a calibration into a folder": (
        lambda: calibration().save("."),
        "cannot write .: it is a directory; name a file",
    ),
    "calibrations of two models": (
        lambda: calibration().merge(qtool.calibrate(flat_net(), [torch.randn(40, 12)])),
        "the two calibrations have a different model; merge only calibrations made with the same",
    ),
    "a rule that is a dict of one": (
        lambda: quantize(D, recipe={"rules": {"select": "0", "as": "float"}}),
        "the rules of a recipe must be a list; in TOML, start each with [[rules]]",
    ),
    "layers with their schemes as a recipe": (
        lambda: quantize(D, recipe={"0": "float"}),
        "the recipe has the key '0'; known are mode, accuracy, recover, slow_layers, parts, rules",
    ),
    "goals as a dict": (
        lambda: qtool.tune(image_net(), D, D, goals={"max_drop": 0.1}),
        "{'max_drop': 0.1} is no TuneGoals; give qtool.TuneGoals(...)",
    ),
    "load_model of a model": (
        lambda: qtool.load_model(image_net()),
        "the source is a Sequential; give a path or a name",
    ),
    "bench of no file": (lambda: qtool.bench([]), "there is no file; give one or more to time"),
    "compare of no file": (
        lambda: qtool.compare([], D),
        "there is no file; give two or more to compare",
    ),
    "load_model of a hub id": (
        lambda: qtool.load_model("google/vit-base"),
        "no such model: 'google/vit-base'; give ... google/vit-base --local-dir FOLDER`",
    ),
    "load_model of a .pth": (
        lambda: qtool.load_model("resnet.pth"),
        "resnet.pth is a file of weights or of ... dict with weights='resnet.pth'",
    ),
    "load_data of nothing": (lambda: qtool.load_data("images"), "images: no such file or folder"),
    "load_data of a share": (
        lambda: qtool.load_data("tests.mistakes.nets:images", samples=0.1),
        "samples is 0.1; give a whole number of at least 1",
    ),
    "goals that are NaN": (
        lambda: qtool.TuneGoals(max_drop=float("nan")),
        "TuneGoals.max_drop is nan; give a finite number or None",
    ),
    "a goal below zero": (
        lambda: qtool.TuneGoals(min_speedup=-1),
        "TuneGoals.min_speedup is -1; give a finite number above 0 or None",
    ),
    "a target registered twice": (
        lambda: qtool.register_target(_target()),
        "target 'tflite' is registered already; choose another name",
    ),
    "mode and recipe that contradict": (
        lambda: quantize(D, recipe={"mode": "dynamic"}, mode="static"),
        'the recipe sets mode "dynamic", but mode "static" was passed; remove one',
    ),
    "labels of another length": (
        lambda: _evaluate([0] * 7),
        "7 labels for 40 samples; pass one per sample",
    ),
    "labels one-hot": (
        lambda: _evaluate(np.eye(5)[np.zeros(40, int)]),
        "the labels have shape [40, 5]; pass one class number per sample",
    ),
}


def _other_weights() -> nn.Module:
    net = image_net()
    with torch.no_grad():
        net[0].weight.mul_(2)
    return net


def _target() -> object:
    from qtool.planning.targets import TARGETS

    return TARGETS["tflite"]


def _evaluate(labels: object) -> object:
    from qtool.metrics.labels import check_labels

    return check_labels(labels, 40)


@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected)


def test_a_name_misspelled_has_what_python_suggests_from() -> None:
    with pytest.raises(AttributeError) as caught:
        qtool.quantise  # noqa: B018
    assert caught.value.obj is qtool
    assert caught.value.name == "quantise"
