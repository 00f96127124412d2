"""Checks the files with the weights of an ONNX model, before anything reads them."""

from __future__ import annotations

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
