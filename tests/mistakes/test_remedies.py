"""Each remedy of a command is applied: the next command works, or has another true error."""

from __future__ import annotations

from typing import Any

import pytest

from qtool.core.errors import QtoolError
from qtool.core.remedies import Argument, Omission
from tests.mistakes.remedies import M, changed, check_offer, files, here, offered, run

__all__ = ["files", "here", "offered"]  # fixtures

QUANTIZE = f"quantize {M}:image_net --data images.npy -o out.onnx"
MICRO = f"quantize {M}:image_net --data images.npy -o out.tflite --target tflite-micro"
SCALES = "convert float.onnx --scales weights.onnx --calibration float.calib"

COMMANDS: dict[str, tuple[str, set[str]] | tuple[str, set[str], dict[str, str]]] = {
    "weights alone, of unknown sizes": (
        f"quantize {M}:image_net --mode weight-only -o out.onnx",
        {"api/conversion_inputs --data", "api/conversion_inputs --shape"},
    ),
    "weights alone of a file of unknown sizes": (
        "quantize open.onnx --mode weight-only -o out.onnx",
        {"frontends/onnx/onnx_module --data"},
        {"--data": "the batch gives float32[40, 3, 8, 8]"},
    ),
    "no data and no BatchNorm": (
        f"calibrate {M}:rows --data none --shape 3,8,8 -o c.calib",
        {"calibration/data_free --data"},
    ),
    "a layout of folders for a factory": (
        f"quantize {M}:image_net --data images.npy --layout optimum -o out",
        {"api/model_folder --layout"},
        {"--layout": "name the file out.onnx"},
    ),
    "a folder that is named as a file": (
        "quantize bert --data images.npy --layout optimum -o out.onnx",
        {"api/model_folder -o"},
        {"-o": "bert has no weights in safetensors"},
    ),
    "a .tflite file of a model larger than --memory": (
        "quantize float.onnx --data vectors.npy --memory 1 -o out.tflite",
        {"api/file_target -o", "api/stored_model --memory"},
    ),
    "another format of a model larger than --memory": (
        "quantize float.onnx --data vectors.npy --memory 1 --format qoperator -o out.onnx",
        {"api/file_target --format", "api/stored_model --memory"},
    ),
    "no data of a model larger than --memory": (
        "quantize float.onnx --mode weight-only --memory 1 -o out.onnx",
        {"api/stored_model --data", "api/stored_model --memory"},
        {"--data": "the batch gives float32[40, 3, 8, 8]"},
    ),
    "weights alone in a .tflite file": (
        f"quantize {M}:image_net --data images.npy --mode weight-only -o out.tflite",
        {"backends/tflite/export/convert --mode"},
    ),
    "a layer in float on a microcontroller": (
        f"{MICRO} --recipe layer.toml",
        {
            "backends/tflite/microcontroller --recipe",
            "backends/tflite/microcontroller --target",
        },
    ),
    "a transposed convolution of groups in a .tflite file": (
        f"quantize {M}:grouped --data images.npy -o out.tflite",
        {"backends/tflite/export/layers -o"},
    ),
    "two sizes that follow the batch in a .tflite file": (
        f"quantize {M}:similarities --data images.npy -o out.tflite",
        {"backends/tflite/export/writer --target"},
    ),
    "a batch size that a file does not have": (
        "bench four.onnx --batch-sizes 3 --seconds 0.01",
        {"evaluation/latency/bench --batch-sizes"},
    ),
    "labels for a model without classes": (
        f"evaluate rows.onnx --model {M}:rows --data images.npy --labels labels.npy",
        {"metrics/regression --eval"},
    ),
    "an input of texts": (
        "bench texts.onnx",
        {"evaluation/model_inputs --data"},
        {"--data": "batch 0 lacks input"},
    ),
    "a file of other weights": (
        f"evaluate image.onnx --model {M}:other_weights --data images.npy",
        {"evaluation/same_model --other-model"},
    ),
    "weights in a file of their own for .tflite": (
        f"quantize {M}:image_net --external-data --data images.npy -o out.tflite",
        {"api/file_target --external-data"},
    ),
    "a layout of images for an ONNX file": (
        f"{QUANTIZE} --layout nhwc",
        {"api/file_target --layout"},
    ),
    "integers at the interface of an ONNX file": (
        f"{QUANTIZE} --interface int8",
        {"api/file_target --interface"},
    ),
    "one sample at a time of an ONNX file": (
        f"{QUANTIZE} --batch 1",
        {"api/file_target --batch"},
    ),
    "many samples on a microcontroller": (
        f"quantize {M}:image_net --data images.npy --batch dynamic -o out.cc",
        {"backends/tflite/layout_options --batch"},
    ),
    "a task for a factory": (
        f"{QUANTIZE} --task text-classification",
        {"frontends/load_model --task"},
    ),
    "a constant for a factory": (f"{QUANTIZE} --fix n=3", {"frontends/load_model --fix"}),
    "weights for an ONNX file": (
        "quantize float.onnx --weights state.pt --data vectors.npy -o out.onnx",
        {"frontends/load_model --weights"},
    ),
    "batches of a file that takes single samples alone": (
        "quantize one.onnx --data vectors.npy -o out.onnx",
        {"frontends/onnx/onnx_file --batch-size"},
    ),
    "a dimension that the model fixes": (
        f"{QUANTIZE} --dynamic input:2",
        {"frontends/torch/export_errors --dynamic"},
    ),
    "a network inside an If": (
        "quantize branches.onnx --data branches.npz -o out.onnx",
        {"planning/planner --fix"},
    ),
    "a network inside an If on a number": (
        "quantize threshold.onnx --data threshold.npz -o out.onnx",
        {"planning/planner --fix"},
    ),
    "rules that keep all in float": (
        f"{QUANTIZE} --recipe float.toml",
        {"planning/planner --recipe"},
    ),
    "a mode without kernels": (
        f"quantize {M}:rows --data images.npy --mode dynamic -o out.onnx",
        {"planning/planner --mode"},
    ),
    "scales of weights alone": (
        "convert float.onnx --scales weights.onnx -o out.onnx",
        {"api/scales --calibration"},
    ),
    "a step before the scales": (
        f"{SCALES} --recover smooth-quant -o out.onnx",
        {"api/scales --recover"},
    ),
    "steps before and after the scales": (
        f"{SCALES} --recover smooth-quant,gptq -o out.onnx",
        {"api/scales --recover"},
    ),
    "a format that the target lacks": (
        f"quantize {M}:image_net --data images.npy --target openvino -o out.tflite",
        {"planning/targets/__init__ --target"},
    ),
}
"""Mistake -> (command, what its error must offer: module below qtool/ and argument; argument -> the
other error that the changed command has, where it does not work at once)."""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS)
def test_a_command_with_the_remedy(case: Any, offered: list[QtoolError]) -> None:
    command, sites, then = (*case, {})[:3]
    code, said = run(command.split())
    errors = [e for e in reversed(offered) if str(e) in said]
    assert (code, bool(errors)) == (2, True), said
    check_offer(errors[0], sites)
    for remedy in errors[0].remedies:
        if isinstance(remedy, Argument | Omission):
            code, said = run(changed(command.split(), remedy))
            assert (code == 2) == (remedy.name in then), said
            assert then.get(remedy.name, "") in said
