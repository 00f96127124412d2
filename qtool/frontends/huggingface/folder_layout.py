"""Where the libraries that load a model's folder look for its ONNX files, and on which devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.core.argument_names import argument
from qtool.core.paths import is_file

GENAI, OPTIMUM, JS, SENTENCES = "genai", "optimum", "transformers.js", "sentence-transformers"
SHARED = "shared"

_STEMS = {
    "": "model",
    "encoder": "encoder_model",
    "decoder": "decoder_model_merged",
    "text": "text_model",
    "vision": "vision_model",
}


@dataclass(frozen=True)
class FolderLayout:
    """How a folder is laid out.

    Attributes:
        consumers: libraries that load it.
        subfolder: folder of the ONNX files; "" for the folder itself.
        with_precision: whether names end in the precision of the weights, as "model_q4.onnx".
    """

    consumers: tuple[str, ...]
    subfolder: str = ""
    with_precision: bool = False

    def path(self, folder: Path, part: str, mode: str, target: str = "") -> Path:
        """Return the path of an ONNX file.

        Args:
            folder: folder of the model.
            part: "encoder" or "decoder", "text" or "vision" for a tower of two; "" for a model of
                one part.
            mode: quantization scheme.
            target: name of the target.
        """
        ending = f"_{precision(mode, target)}" if self.with_precision else ""
        return folder / self.subfolder / f"{_STEMS[part]}{ending}.onnx"


LAYOUTS: Mapping[str, FolderLayout] = {
    SHARED: FolderLayout((GENAI, OPTIMUM, JS, SENTENCES), "onnx", with_precision=True),
    GENAI: FolderLayout((GENAI,)),
    OPTIMUM: FolderLayout((OPTIMUM,)),
    JS: FolderLayout((JS,), "onnx", with_precision=True),
    SENTENCES: FolderLayout((SENTENCES,), "onnx"),
}
"""Name -> layout; `shared` is one that all of them load."""


def model_folder_of(file: Path) -> Path:
    """Return the folder that an ONNX file belongs to: the one above a subfolder of a layout."""
    subfolders = {layout.subfolder for layout in LAYOUTS.values()} - {""}
    above = file.parent.parent
    inside = file.parent.name in subfolders and is_file(above / "config.json")
    return above if inside else file.parent


# The files of a folder that transformers.js loads on each of its devices.
#
# It names a file by a dtype, "model_q4.onnx" by q4, and takes the one that the call, then
# config.json under `transformers.js_config` (with `device_config` for a single device), then its
# own table for the device names (@huggingface/transformers 4.3, src/models/session.js).


WASM, WEBGPU = "wasm", "webgpu"
"""Names of devices."""
GPU_TARGET, WEB_TARGET = "onnxruntime-webgpu", "onnxruntime-web"

_PRECISIONS = {"weight-only-int4": "q4"}  # as transformers.js names them
_OTHER, _OTHER_ON_GPU = "quantized", "int8"
_DTYPES = {_OTHER: "q8"}
"""Ending of a file's name -> dtype, where they differ."""

Records = Mapping[str, Mapping[str, Any]]
"""Path of each ONNX file in a folder -> its mode and target, as quantize_config.json has them."""


def precision(mode: str, target: str = "") -> str:
    """Return the ending of a file's name.

    8-bit files for WebGPU have one of their own, so that they lie next to those for WebAssembly.

    Args:
        mode: quantization scheme.
        target: name of the target.
    """
    return _PRECISIONS.get(mode, _OTHER_ON_GPU if target == GPU_TARGET else _OTHER)


def same_part(file: str, files: Records) -> dict[str, Mapping[str, Any]]:
    """Return the files of the part of a model, such as its encoder, that a file holds."""

    def part(name: str) -> str:
        return Path(name).stem.removesuffix(f"_{precision(**files[name])}")

    return {name: row for name, row in files.items() if part(name) == part(file)}


def file_for(device: str, files: Records) -> str:
    """Return the path of the newest file for a device, else of the newest file.

    Args:
        device: a name.
        files: the files of one part of a model, the newest last.
    """
    right = [f for f, row in files.items() if (row["target"] == GPU_TARGET) is (device == WEBGPU)]
    return (right or list(files))[-1]


def config(files: Records) -> dict[str, Any]:
    """Return `transformers.js_config`: the dtype of each device."""
    usual, on_gpu = (_dtype(file_for(device, files), files) for device in (WASM, WEBGPU))
    other = {} if on_gpu == usual else {"device_config": {WEBGPU: {"dtype": on_gpu}}}
    return {"dtype": usual, **other}


def _dtype(file: str, files: Records) -> str:
    ending = precision(files[file]["mode"], files[file]["target"])
    return _DTYPES.get(ending, ending)


def device_lines(files: Records) -> list[str]:
    """Return a line for each device: its file, or how to write one for it."""
    targets = {row["target"] for row in files.values()}
    missing = {
        WASM: (targets == {GPU_TARGET}, argument("--target", WEB_TARGET)),
        WEBGPU: (
            GPU_TARGET not in targets,
            f"{argument('--target', GPU_TARGET)} and {argument('--mode', 'weight-only-int4')}",
        ),
    }
    lines = []
    for device, (lacks, options) in missing.items():
        text = f"{Path(file_for(device, files)).name}"
        if lacks:
            text = f"no file of its own; {options} with the same folder adds one"
        lines.append(f"device {device}: {text}")
    return lines
