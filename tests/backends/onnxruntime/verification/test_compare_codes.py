"""The integer engine against ONNX Runtime: equal files are exact, differences are located."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.verification import Exactness
from tests.backends.onnx.export.networks import exported, samples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("residual"))
    return path


def batch(seed: int) -> list[np.ndarray]:
    return [t.numpy() for t in samples("residual", 3, seed=seed)]


def test_every_batch_is_compared(file: Path) -> None:
    one, two = compare_codes(file, [batch(1)]), compare_codes(file, [batch(1), batch(2)])
    assert one.exact
    assert two.exact
    assert (one.samples, two.samples) == (3, 6)
    assert two.elements == 2 * one.elements > 0
    assert two.first is None
    assert two.share == 1
    assert two.worst == 0


def test_another_weight_is_found_and_its_first_tensor_named(file: Path) -> None:
    changed = onnx.load(file)
    codes = {i.name: i for i in changed.graph.initializer}
    weights = [n for n in codes if n.endswith(".weight.codes")]
    stored = codes[weights[0]]
    array = onnx.numpy_helper.to_array(stored).copy()
    array[...] = -array
    stored.CopyFrom(onnx.numpy_helper.from_array(array, stored.name))
    # the runtime runs the file as it is, the engine the changed one
    found = compare_codes(ExportedFile(file, qdq=changed), [batch(1)])
    assert not found.exact
    assert found.worst > 0
    assert weights[0] == "conv1.0.weight.codes"
    assert found.first == "relu"  # the first codes behind it
    assert "first difference in relu" in str(found)


def test_a_result_in_words_and_as_json() -> None:
    found = Exactness(2, 8, 6, 3.0, "conv", 1)
    assert not found.exact
    assert found.to_json()["share"] == 0.75
    assert str(found) == (
        "integer engine vs ONNX Runtime (2 samples): 6 of 8 output values identical (75.000 %), "
        "max difference 3 codes, first difference in conv; rounded otherwise in float nodes; "
        "float nodes run by ONNX Runtime on both sides: 1"
    )
    assert Exactness(1, 0, 0, 0.0, None, 0).share == 1
