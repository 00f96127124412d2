"""Integers are compared with tolerance zero whatever else the file holds."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.core.errors import DataError


class Branches(nn.Module):
    """One output of integers alone, another behind an operator in float."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.a, self.b = (nn.Conv2d(c, 4, 3) for c in (3, 4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.relu(self.stem(x))
        return self.a(y), F.relu(self.b(F.gelu(y)))


X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("exact") / "branches.onnx"
    qtool.quantize(Branches().eval(), [X], accuracy="fast").export(found)
    return found


def test_arrays_that_are_read_only_are_no_warning(file: Path) -> None:
    read_only = X.numpy().copy()
    read_only.flags.writeable = False
    torch.set_warn_always(True)  # not once per process
    try:
        assert compare_codes(file, [[read_only]]).exact
    finally:
        torch.set_warn_always(False)


class Wrong(ExportedFile):
    """A file whose program is that of another one: an error in the engine."""

    def __init__(self, path: Path, weight: str) -> None:
        super().__init__(path)
        model = onnx.load(path)
        (stored,) = (i for i in model.graph.initializer if i.name == f"{weight}.weight.codes")
        array = numpy_helper.to_array(stored).copy()
        array.flat[0] = -array.flat[0] if array.flat[0] else 100
        array[0] //= 2
        stored.CopyFrom(numpy_helper.from_array(array, stored.name))
        program = lower(model)
        self._programs = {program.profile: program}


def test_nothing_compared_is_no_result(file: Path) -> None:
    with pytest.raises(DataError, match="nothing was compared"):
        compare_codes(file, [])


class Gives(nn.Conv2d):
    """Its weight beside its result."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), self.weight


def test_a_weight_may_be_an_output(tmp_path: Path) -> None:
    found = qtool.quantize(Gives(3, 4, 3).eval(), [X], accuracy="fast").export(
        tmp_path / "gives.onnx"
    )
    assert found.passed


def test_the_engine_agrees(file: Path) -> None:
    found = compare_codes(file, [[X.numpy()]])
    assert found.float_steps > 0
    assert found.exact
    assert found.passed


@pytest.mark.parametrize("layer", ["a", "b", "stem"])
def test_a_node_in_float_excuses_no_integer_kernel(file: Path, layer: str) -> None:
    found = compare_codes(Wrong(file, layer), [[X.numpy()]])
    assert not found.exact
    assert not found.passed
    assert "not explained by float nodes" in str(found)
    names = {name.split(".")[0] for name in found.wrong}
    assert ({"a": "a", "b": "relu_2", "stem": "relu"}[layer]) in names or layer in names


def test_what_a_float_node_rounds_is_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's outputs behind GELU, off by a code: no kernel of integers is to blame."""
    onnx_file = ExportedFile(file)
    outputs = [a.copy() for a in onnx_file.run([X.numpy()])]
    outputs[1].flat[0] += np.float32(1e-3)
    monkeypatch.setattr(onnx_file, "run", lambda _: outputs)
    found = compare_codes(onnx_file, [[X.numpy()]])
    assert not found.exact
    assert found.passed
    outputs[0].flat[0] += np.float32(1e-3)
    assert not compare_codes(onnx_file, [[X.numpy()]]).passed


@pytest.mark.parametrize("place", [0, 12, 20])
def test_a_wrong_kernel_is_named_whatever_sample_shows_it(file: Path, place: int) -> None:
    """Tensors are compared in parts of a batch."""
    batch = np.zeros((21, 3, 12, 12), np.float32)
    batch[place] = X[0]
    assert compare_codes(file, [[batch]]).passed
    wrong = compare_codes(Wrong(file, "b"), [[batch]])
    assert not wrong.passed
    assert wrong.wrong
