"""Mistakes with options: misspelled, out of range, or for another command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.mistake import check_command

Q = "quantize tests.mistakes.nets:image_net --data tests.mistakes.nets:images -o out.onnx"
T = (
    "tune tests.mistakes.nets:image_net --data tests.mistakes.nets:images "
    "--eval-data tests.mistakes.nets:images -o out.onnx"
)
COMMANDS: dict[str, tuple[str, str]] = {
    "a command misspelled": (
        "quantise net -o out.onnx",
        "unknown command 'quantise'; did you mean 'quantize'? There are: ... inspect, emulators",
    ),
    "a command that is none": (
        "prune net",
        "unknown command 'prune'; did you mean ... tune, explain, inspect, emulators",
    ),
    "no model": ("quantize --data x.npy -o out.onnx", "Missing argument 'MODEL'."),
    "no data": ("quantize net -o out.onnx", "Missing option '--data'."),
    "no data for activations": (
        "quantize net --mode dynamic -o out.onnx",
        "Missing option '--data'.",
    ),
    "weights alone, of unknown sizes": (
        "quantize tests.mistakes.nets:image_net --mode weight-only -o out.onnx",
        "there is no data, and the sizes of the ... give data, or give them with --shape",
    ),
    "no output": ("quantize net --data x.npy", "Missing option '-o' / '--output'."),
    "neither a calibration nor scales": (
        "convert net -o out.onnx",
        "give --calibration, --scales or both",
    ),
    "two models": ("quantize a b --data x.npy -o out.onnx", "Got unexpected extra argument (b)"),
    "an option misspelled": (
        f"{Q} --obsever mse",
        "No such option '--obsever'; did you mean '--observer'?",
    ),
    "an option without a value": (f"{Q} --target", "Option '--target' requires an argument."),
    "a target misspelled": (
        f"{Q} --target tensorflow",
        "Invalid value for '--target': unknown target ... tensorrt, tflite, tflite-micro, qnn",
    ),
    "a target of another spelling": (
        f"{Q} --target onnxruntime-ARM64",
        "Invalid value for '--target': unknown target ... tensorrt, tflite, tflite-micro, qnn",
    ),
    "an observer misspelled": (
        f"{Q} --observer min-max",
        "Invalid value for '--observer': unknown ... mse, entropy, gaussian, laplace",
    ),
    "a percentile beyond 100": (
        f"{Q} --observer percentile:101",
        "option 'p' of observer 'percentile' must lie between 50 and 100, not '101'",
    ),
    "a percentile that is text": (
        f"{Q} --observer percentile:high",
        "option 'p' of observer 'percentile' must be a number, not 'high'",
    ),
    "a parameter of an observer without any": (
        f"{Q} --observer minmax:3",
        "cannot read '3' in observer 'minmax:3': expected key=value",
    ),
    "a mode misspelled": (
        f"{Q} --mode int8",
        "Invalid value for '--mode': unknown mode ... dynamic, weight-only, weight-only-int4",
    ),
    "a mode of another tool": (
        f"{Q} --mode qat",
        "Invalid value for '--mode': unknown ... weight-only, weight-only-int4",
    ),
    "an effort misspelled": (
        f"{Q} --accuracy high",
        "unknown accuracy level 'high'; did you mean 'best'? There are: fast, balanced, best",
    ),
    "a step misspelled": (
        f"{Q} --recover smoothquant",
        "Invalid value for '--recover': unknown ... learned-scales",
    ),
    "a step of another tool": (
        f"{Q} --recover awq",
        "Invalid value for '--recover': unknown ... learned-scales",
    ),
    "a format misspelled": (
        f"{Q} --format qoperators",
        "Invalid value for '--format': unknown format ... are: qdq, qoperator, tflite, c-array",
    ),
    "a format that the target lacks": (
        f"{Q} --target openvino --format qoperator",
        "target openvino does not support format 'qoperator'; it supports: qdq",
    ),
    "a .tflite file for another runtime": (
        f"{Q} --target openvino -o out.tflite",
        "target openvino does not support format 'tflite'; ... --target tflite supports tflite",
    ),
    "a search for .tflite files of another runtime": (
        f"{T} -o out.tflite --target qnn",
        "target qnn does not support format 'tflite'; ... --target tflite supports tflite",
    ),
    "C source for another runtime": (
        f"{Q} --target openvino -o out.cc",
        "target openvino does not support format ... --target tflite-micro supports c-array",
    ),
    "batch size 0": (
        f"{Q} --batch-size 0",
        "Invalid value for '--batch-size': 0 is not in the range 1<=x<=1000000.",
    ),
    "batch size as text": (
        f"{Q} --batch-size all",
        "Invalid value for '--batch-size': 'all' is not a whole number.",
    ),
    "half a batch": (
        f"{Q} --batch-size 0.5",
        "Invalid value for '--batch-size': '0.5' is not a whole number.",
    ),
    "samples 0": (
        f"{Q} --samples 0",
        "Invalid value for '--samples': 0 is not in the range 1<=x<=1000000.",
    ),
    "a share as samples": (
        f"{Q} --samples 0.1",
        "Invalid value for '--samples': '0.1' is not a whole number.",
    ),
    "samples below 0": (
        f"{Q} --samples=-5",
        "Invalid value for '--samples': -5 is not in the range 1<=x<=1000000.",
    ),
    "coverage in percent": (
        f"{Q} --min-coverage 99",
        "Invalid value for '--min-coverage': 99.0 is not in the range 0<=x<=1.",
    ),
    "coverage NaN": (
        f"{Q} --min-coverage nan",
        "Invalid value for '--min-coverage': nan is not a finite number.",
    ),
    "a drop in percent": (
        f"{T} --max-drop 1%",
        "Invalid value for '--max-drop': '1%' is a percentage; write 0.01.",
    ),
    "an option of other commands": (
        "evaluate out.onnx --model net --data x.npy --max-drop 0.1",
        "No such option '--max-drop'; `qtool gate`, `qtool report`, ... and `qtool tune` have it",
    ),
    "a layout of images for an ONNX file": (
        f"{Q} --layout nhwc",
        "--layout nhwc is for .tflite files, and out.onnx is an .onnx file; leave it out",
    ),
    "integers at the interface of an ONNX file": (
        f"{Q} --interface int8",
        "--interface int8 is for .tflite files, and out.onnx is an .onnx file; leave it out",
    ),
    "a step that is none": (
        f"{Q} --recover none",
        "Invalid value for '--recover': unknown recovery step 'none'; there are: rotation",
    ),
    "bins below the least": (
        f"{Q} --observer entropy:bins=7",
        "option 'bins' of observer 'entropy' must lie between 64 and 65536, not '7'",
    ),
    "two values of an observer": (
        f"{Q} --observer percentile:99.9:3",
        "option 'p' of observer 'percentile' must be a number, not '99.9:3'",
    ),
    "a dimension without its input": (
        f"{Q} --dynamic 2",
        "Invalid value for --dynamic: '2' is not INPUT:DIM or INPUT:DIM=NAME",
    ),
    "a dimension that the input lacks": (
        f"{Q} --dynamic input:7",
        "input 'input' has no dimension 7: its shape is [",
    ),
    "a shape with the batch": (
        "quantize tests.mistakes.nets:image_net --data none --shape 1,3,8,8 -o out.onnx",
        "--shape: the model does not take samples of the shape 1,3,8,8 ... write --shape 3,8,8",
    ),
    "a shape with channels last": (
        "quantize tests.mistakes.nets:image_net --data none --shape 8,8,3 -o out.onnx",
        "--shape: the model does not take samples of the shape 8,8,3 ... write --shape 3,8,8",
    ),
    "a shape next to data": (
        f"{Q} --shape 3,8,8",
        "Invalid value for --shape: it is for --data none",
    ),
    "a memory that is no size": (
        f"{Q} --memory lots",
        "Invalid value for '--memory': 'lots' is not a size such as 512MiB or 3GiB.",
    ),
    "a state that the model lacks": (
        f"{Q} --state a=b",
        "the model has no output 'a'; its outputs are output",
    ),
    "a mode that a target lacks": (
        f"{Q} --target openvino --mode dynamic",
        "nothing in this model can run in integers on openvino: ... use --mode static",
    ),
    "a choice that is none": (
        f"{T} --choices int3",
        "Invalid value for '--choices': unknown choice 'int3'; there are: static, static-16",
    ),
    "a stride for a command without texts": (
        f"{Q} --stride 5",
        "No such option '--stride'; `qtool evaluate` has it",
    ),
    "batch sizes with semicolons": (
        "bench out.onnx --batch-sizes 1;2",
        "Invalid value for '--batch-sizes': '1;2' is not a list of numbers like 1,32",
    ),
    "very many threads": (
        "bench out.onnx --threads 100000",
        "threads is 100000; give a whole number of at least 1 and of at most",
    ),
    "a runtime that is none": (
        "bench out.onnx --runtime cuda",
        "Invalid value for '--runtime': unknown runtime 'cuda'; there are: onnxruntime",
    ),
    "a target of no name": (
        f"{Q} --target android",
        "unknown target 'android'; did you mean 'tflite'? There are: onnxruntime",
    ),
    "a target of two runtimes": (
        f"{Q} --target raspberry-pi",
        "unknown target 'raspberry-pi'; did you mean 'onnxruntime' or 'tflite'? There are: ...",
    ),
    "a microcontroller as target": (
        f"{Q} --target esp32-s3",
        "unknown target 'esp32-s3'; did you mean 'tflite-micro'? There are: ...",
    ),
    "the accuracy as metric of a gate": (
        "gate a.onnx --against b.onnx --data x.npy --metric accuracy",
        "unknown metric 'accuracy'; did you mean 'top-1'? There are: agreement, top-1, ...",
    ),
    "SQNR with a unit": (
        f"{Q} --min-sqnr 30dB",
        "Invalid value for '--min-sqnr': '30dB' is not a valid float.",
    ),
    "endless seconds": (
        f"{Q} --seconds inf",
        "Invalid value for '--seconds': inf is not a finite number.",
    ),
    "seconds below 0": (
        f"{Q} --seconds=-1",
        "Invalid value for '--seconds': -1.0 is not in the range 0<=x<=86400.0.",
    ),
    "an input that is not there": (
        f"{Q} --dynamic image:0",
        "dynamic names 'image', which is not an input; the inputs are input",
    ),
    "dynamic without a dimension": (
        f"{Q} --dynamic input",
        "Invalid value for --dynamic: 'input' is not INPUT:DIM or INPUT:DIM=NAME",
    ),
    "dynamic with a name for a number": (
        f"{Q} --dynamic input:batch",
        "Invalid value for --dynamic: 'input:batch' is not INPUT:DIM or INPUT:DIM=NAME",
    ),
    "a shape with data": (f"{Q} --shape 3,8,8", "Invalid value for --shape: it is for --data none"),
    "a shape with x": (
        "calibrate tests.mistakes.nets:image_net --data none --shape 3x8x8 -o c.calib",
        "Invalid value for --shape: '3x8x8' is not SIZE,SIZE,",
    ),
    "a shape with a zero": (
        "calibrate tests.mistakes.nets:image_net --data none --shape 3,0,8 -o c.calib",
        "Invalid value for --shape: '3,0,8' is not SIZE,SIZE,",
    ),
    "no data and no BatchNorm": (
        "calibrate tests.mistakes.nets:flat_net --data none --shape 12 -o c.calib",
        "there is no data, and no BatchNorm in ... data, or give the model before folding",
    ),
    "no data and no shape": (
        "calibrate tests.mistakes.nets:image_net --data none -o c.calib",
        "there is no data, and the sizes of the ... give data, or give them with --shape",
    ),
    "a share above 1": (
        f"{Q} --max-unreadable 5",
        "Invalid value for '--max-unreadable': 5.0 is not in the range 0<=x<=1.",
    ),
    "no length": (
        f"{Q} --max-length 0",
        "Invalid value for '--max-length': 0 is not in the range 1<=x<=1000000.",
    ),
    "a task for a factory": (
        f"{Q} --task text-classification",
        "--task is for folders of transformers, not for ... leave it out",
    ),
    "a cache for a CNN": (
        f"{Q} --cache int8",
        "Invalid value for --cache: it is for --task text-generation-with-past",
    ),
    "a transform for arrays": (
        f"{Q} --transform timm",
        "--transform is for images and sounds, and ... makes batches",
    ),
    "a length for arrays": (
        f"{Q} --max-length 128",
        "--max-length is for texts, and tests.mistakes.nets:images makes batches ... leave out",
    ),
    "max-drop NaN": (
        f"{T} --max-drop nan",
        "Invalid value for '--max-drop': nan is not a finite number.",
    ),
    "speed-up 0": (
        f"{T} --min-speedup 0",
        "Invalid value for '--min-speedup': 0.0 is not in the range x>0.",
    ),
    "size with a unit": (
        f"{T} --max-size 5MB",
        "Invalid value for '--max-size': '5MB' is not a whole number.",
    ),
    "certainty": (
        f"{T} --confidence 1.5",
        "Invalid value for '--confidence': 1.5 is not in the range 0<=x<1.",
    ),
    "a choice misspelled": (
        f"{T} --choices static,fp16",
        "Invalid value for '--choices': unknown choice ... int4-weights, int2-weights, float",
    ),
    "no evaluations": (
        f"{T} --evaluations 0",
        "Invalid value for '--evaluations': 0 is not in the range x>=1.",
    ),
    "a group misspelled": (
        f"{T} --group layers",
        "the group 'layers' selects no layer of the search space",
    ),
    "bench without files": ("bench", "Missing argument 'FILES"),
    "bench of a model that is not there": ("bench a.onnx", "a.onnx: no such file"),
    "a list of batch sizes with spaces": (
        "bench a.onnx --batch-sizes 1;32",
        "Invalid value for '--batch-sizes': ... numbers like 1,32 (up to 1000000)",
    ),
    "threads 0": (
        "bench a.onnx --threads 0",
        "Invalid value for '--threads': '0' is not a ... list of numbers like 1,32 (up to 1000000)",
    ),
    "more threads than there are": (
        "bench a.onnx --threads 99999",
        "threads is 99999; give a whole number of at least 1 and of at most 64",
    ),
    "evaluate without a model": ("evaluate a.onnx --data x.npy", "Missing option '--model'."),
    "compare one file": ("compare a.onnx --data x.npy", "x.npy: no such file or folder"),
    "report without a folder": ("report a.onnx --data x.npy", "Missing option '-o' / '--output'."),
    "a processor that is none": (
        "verify a.onnx --cpu z80",
        "unknown processor 'z80'; choose from haswell, ... neoverse-n1, neoverse-n2, wasm, or all",
    ),
    "merge of one": ("merge -o all.calib", "Missing argument 'CALIBRATIONS"),
    "emulators misspelled": ("emulators --instal", "No such option '--instal'."),
    "an import that is not there": (
        "--import nowhere inspect a.onnx",
        "cannot import nowhere: ... 'nowhere', or install that package",
    ),
    "a log level misspelled": (
        f"{Q} --log-level loud",
        "Invalid value for '--log-level': 'loud' ... 'info', 'warning', 'error'.",
    ),
}


def prepare() -> None:
    """No file is needed: it is refused before."""
    assert Path("tests").exists()


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    prepare()
    check_command(arguments, expected)
