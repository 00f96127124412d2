"""Writes the weights of a model that is being made into its data file, one after the other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx_ir as ir

from qtool.backends.onnx import storage
from qtool.core.atomic import atomic_path


def write_weights(model: ir.Model, folder: Path, name: str) -> None:
    """Write the weights of a model to the data file of a model of that name, one after the other;
    in the model, they become references to it.

    Args:
        model: its tensors may be read when they are needed.
        folder: folder of the data file.
        name: file name of the model.

    Raises:
        OSError: the file cannot be written.
    """
    stored, places, end = dict[str, ir.Value](), dict[str, tuple[int, int]](), 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        assert value.name is not None
        if tensor.dtype is not ir.DataType.STRING and tensor.nbytes > storage.SMALL:
            stored[value.name], places[value.name] = value, (end, tensor.nbytes)
            end += -(-tensor.nbytes // storage.PAGE) * storage.PAGE
    if not stored:
        return
    digest = hashlib.sha256(repr(places).encode())
    with atomic_path(folder / f"{name}.data") as temporary:
        with temporary.open("wb") as file:
            for key, value in stored.items():
                assert value.const_value is not None
                content = value.const_value.tobytes()
                digest.update(content)
                file.seek(places[key][0])
                file.write(content)
        data = storage.data_file(folder / name, digest.hexdigest()[: storage.DIGITS])
    (folder / f"{name}.data").replace(data)
    for key, value in stored.items():
        tensor = value.const_value
        assert tensor is not None
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            data.name, *places[key], tensor.dtype, shape=shape, name=key, base_dir=folder
        )
