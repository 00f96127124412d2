"""A tiny network as files, float and int8, for all that measures files."""

import pytest

from qtool.backends.onnx.export import write_float
from qtool.backends.onnx.storage import save
from tests.evaluation.spoiled import chain


@pytest.fixture(scope="session")
def chain_files(tmp_path_factory):
    """(float, int8) of the network in spoiled.py."""
    folder = tmp_path_factory.mktemp("chain")
    quantized = chain()
    plain = write_float(quantized.graph, folder / "float.onnx")
    save(quantized.to_onnx(), folder / "int8.onnx")
    return plain, folder / "int8.onnx"
