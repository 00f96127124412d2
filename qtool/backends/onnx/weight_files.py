"""The files that hold the weights of a model: their names, and the size of what they hold."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path

import onnx

from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import FileError
from qtool.core.paths import is_file
from qtool.core.remedies import OtherFile


def check_weight_files(model: onnx.ModelProto, folder: Path) -> None:
    """Check that the files which a model names for its weights are there, and whole.

    Files outside of the folder are the business of what reads them, and refuses them.

    Args:
        model: the model, without its external weights.
        folder: folder of the model file.

    Raises:
        FileError: a file is missing, cut off, or something else that a download left.
        ValueError: an offset is no number.
    """
    ends: dict[str, tuple[int, str]] = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if name := entries.get("location"):
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
            ends[name] = max(ends.get(name, (0, "")), (end, tensor.name))
    for name, (end, tensor_name) in ends.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            continue
        if not is_file(file):
            raise FileError(
                f"{file}, which holds weights of the model, is not there",
                OtherFile("put it into the folder of the model, under this name"),
            )
        check_download(file, FileError)
        if (size := file.stat().st_size) < end:
            raise FileError(
                f"{file} is cut off after {size:,} bytes: '{tensor_name}' is not whole in it",
                DOWNLOAD,
            )


def float_bytes(path: Path) -> int:
    """Return the size of the weights of a file in float32; 0 for a file that is no model."""
    with suppress(Exception):  # it is refused where it is read
        graph = onnx.load(path, load_external_data=False).graph
        return sum(4 * prod(tensor.dims) for tensor in graph.initializer)
    return 0
