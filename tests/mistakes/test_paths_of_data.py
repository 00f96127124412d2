"""Mistakes with files and folders of data and labels: not there, or of another kind."""

from __future__ import annotations

import pytest

from tests.mistakes.mistake import check_command
from tests.mistakes.path_files import prepare

N = "quantize tests.mistakes.nets:image_net"
D = "--data tests.mistakes.nets:images"
OUT = "-o out.onnx"
SLOW = "quantize tests.mistakes.nets:unloadable"
COMMANDS: dict[str, tuple[str, str]] = {
    "an address as data": (
        f"{N} --data https://example.com/x.npz {OUT}",
        "https://example.com/x.npz is an address; download it, and give the file or folder",
    ),
    "a pattern of names as data": (f"{N} --data *.npy {OUT}", "*.npy: no such file or folder"),
    "images for an ONNX file of vectors": (
        "quantize float.onnx --data large.npy -o out.onnx",
        "input 'x' of the file is float32[n, 4], ... give batches of that type and shape",
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
        "batch 1, input 0 holds NaN in its sample 0; remove or repair that sample",
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
    "grey images": (
        f"{N} --data grey.npy {OUT}",
        "the model does not run on the given inputs ... 3 channels, but got 1 channels instead",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_refused_on_the_command_line(arguments: str, expected: str) -> None:
    prepare()
    check_command(arguments, expected)
