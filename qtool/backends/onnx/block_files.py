"""The ONNX files of blocks that were written one by one, and the whole model of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import onnx

from qtool.backends.onnx.join_models import join_models
from qtool.backends.onnx.source_metadata import write_source_metadata
from qtool.core.atomic import write_atomic
from qtool.core.source_metadata import SourceMetadata


def join_blocks(
    blocks: Sequence[Path],
    ports: tuple[Iterable[str], Iterable[str]],
    metadata: Mapping[str, str],
    path: Path,
    source: SourceMetadata,
) -> None:
    """Write the whole model of the files of blocks.

    Args:
        blocks: files of the blocks, in order; their weights are in one data file.
        ports: names of the inputs and of the outputs of the model.
        metadata: keys and values for the file.
        path: path of the model, in the folder of the data file.
        source: metadata of the float model.

    Raises:
        OSError: the file cannot be written.
    """
    parts = [onnx.load(block, load_external_data=False) for block in blocks]
    model = join_models(parts, *ports)
    onnx.helper.set_model_props(model, dict(metadata))
    write_source_metadata(model, source)
    write_atomic(path, model.SerializeToString())


def float_bytes(path: Path) -> int:
    """Return the size of the weights of a file in float32; 0 for a file that is no model."""
    with suppress(Exception):  # it is refused where it is read
        graph = onnx.load(path, load_external_data=False).graph
        return sum(4 * prod(tensor.dims) for tensor in graph.initializer)
    return 0
