"""The ONNX files of blocks that were written one by one, and the whole model of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import onnx

from qtool.backends.onnx.join_models import join_models
from qtool.backends.onnx.source_metadata import write_source_metadata
from qtool.backends.onnx.storage import move_into_place
from qtool.core.source_metadata import SourceMetadata

UNTESTED = "the file was written block by block and never run as a whole"


def publish_blocks(
    blocks: Sequence[Path],
    ports: tuple[Iterable[str], Iterable[str]],
    metadata: Mapping[str, str],
    path: Path,
    weights: tuple[Path, str],
    source: SourceMetadata,
) -> None:
    """Join the files of blocks to one model and write it under its final name.

    Args:
        blocks: files of the blocks, in order; their weights are in the data file.
        ports: names of the inputs and of the outputs of the model.
        metadata: keys and values for the file.
        path: path of the model.
        weights: the data file, and its digest.
        source: metadata of the float model.

    Raises:
        FileError: the place cannot be written.
    """
    parts = [onnx.load(block, load_external_data=False) for block in blocks]
    model = join_models(parts, *ports)
    onnx.helper.set_model_props(model, dict(metadata))
    write_source_metadata(model, source)
    move_into_place(model, path, *weights)


def float_bytes(path: Path) -> int:
    """Return the size of the weights of a file in float32; 0 for a file that is no model."""
    with suppress(Exception):  # it is refused where it is read
        graph = onnx.load(path, load_external_data=False).graph
        return sum(4 * prod(tensor.dims) for tensor in graph.initializer)
    return 0
