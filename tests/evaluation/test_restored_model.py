"""The model behind a file: equal to the one that was exported, however it was made."""

from functools import cache

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.formats import open_file
from qtool.backends.onnx.storage import save
from qtool.core.data import Batch
from qtool.core.errors import FileError, VerificationError
from qtool.evaluation.restored_model import restore, try_restore
from tests.evaluation.spoiled import captured, chain, images
from tests.passes.small_decoder import Layer, inputs

SAMPLE = Batch((images(16),))
MADE = {
    "static": {},
    "dynamic": {"mode": "dynamic", "accuracy": "fast"},
    "weight-only": {"mode": "weight-only"},
    "weight-only-int4": {"mode": "weight-only-int4"},
    "a layer in float": {"recipe": [{"select": "conv.2", "as": "float"}], "accuracy": "fast"},
    "another observer": {"observer": "minmax", "accuracy": "fast"},
}


def same(a, b):
    with torch.no_grad():
        return torch.equal(a(images()), b(images()))


@pytest.mark.parametrize("how", MADE)
def test_restored_model_is_the_one_exported(how, tmp_path):
    """Nobody says how the file was made: it says so itself."""
    quantized = qtool.quantize(captured(), images().split(16), **MADE[how])
    save(quantized.to_onnx(), tmp_path / "int8.onnx")
    assert same(restore(tmp_path / "int8.onnx", captured(), SAMPLE), quantized)


@cache
def captured_layer():
    torch.manual_seed(0)
    return qtool.capture_model(Layer().eval(), inputs())


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only", "weight-only-int4"])
def test_layers_that_a_file_computes_as_one_are_restored_as_several(mode, tmp_path):
    """Projections of a decoder that read one tensor are one layer of its file."""
    decoder = captured_layer()
    quantized = qtool.quantize(decoder, [inputs()], mode=mode, accuracy="fast")
    save(quantized.to_onnx(), tmp_path / "int8.onnx")
    again = restore(tmp_path / "int8.onnx", decoder, Batch(inputs()))
    with torch.no_grad():
        for a, b in zip(again(*inputs()), quantized(*inputs()), strict=True):
            assert torch.equal(a, b)


def test_weights_changed_on_the_way_come_from_the_file(tmp_path):
    changed = chain()
    with torch.no_grad():
        for parameter in changed.module.parameters():
            parameter.mul_(0.7)
    save(changed.to_onnx(), tmp_path / "changed.onnx")
    found = restore(tmp_path / "changed.onnx", captured(), SAMPLE)
    with torch.no_grad():
        assert torch.allclose(found(images()), changed(images()), atol=1e-5)
    assert not same(found, chain())


def test_files_that_cannot_be_restored(chain_files, tmp_path):
    plain, int8 = chain_files
    other = qtool.capture_model(nn.Sequential(nn.Conv2d(3, 8, 3)).eval(), images(16))
    with pytest.raises(VerificationError, match="made from another model"):
        restore(int8, other, SAMPLE)
    assert "was not made by qtool" in try_restore(plain, captured(), SAMPLE)
    (tmp_path / "no.onnx").write_text("no")
    with pytest.raises(FileError, match="is a text"):
        restore(tmp_path / "no.onnx", captured(), SAMPLE)
    with pytest.raises(FileError, match="no such file"):
        open_file(tmp_path / "missing.onnx")
