"""The batch of a .tflite file: one sample or any number; other sizes are those of the example."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import DataError, ExportError, OptionError
from qtool.plugins.tflite.session import LitertSession
from qtool.plugins.tflite.tflite_file import TfliteFile
from tests.needs import needs_litert


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@functools.cache
def quantized(up: bool = True, target: str = "tflite") -> qtool.QuantizedModel:
    """Of a network with a transposed convolution, or without."""
    torch.manual_seed(0)
    second = nn.ConvTranspose2d(8, 4, 2, 2) if up else nn.Conv2d(8, 4, 1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), second)
    return qtool.quantize(model.eval(), [images(32)], target=target, accuracy="fast")


@pytest.mark.parametrize(
    ("up", "batch", "one"),
    [
        *((True, None, True), (True, "dynamic", False), (True, "1", True)),
        *((False, None, False), (False, "1", True)),
    ],
)
def test_files_with_transposed_convolutions_take_one_sample(
    up: bool, batch: str | None, one: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.tflite"
    quantized(up).export(path, verify=False, batch=batch)
    file = TfliteFile(path)
    assert file.is_fixed == one
    assert any(op.name == "SHAPE" for op in file.model.operators) == (up and not one)


@needs_litert
def test_one_sample_and_many_have_the_same_codes(tmp_path: Path) -> None:
    model, outputs = quantized(), []
    for batch in ("1", "dynamic"):
        path = tmp_path / f"{batch}.tflite"
        result = model.export(path, batch=batch)
        assert result.exactness.exact
        assert any("batch: one sample" in n for n in result.notes) == (batch == "1")
        assert model.verify(path).passed
        outputs.append(TfliteFile(path).run([images(5).numpy()])[0])
    assert outputs[0].shape == (5, 4, 16, 16)
    np.testing.assert_array_equal(*outputs)


@needs_litert
def test_the_float_file_has_the_same_batch(tmp_path: Path) -> None:
    for up in (True, False):
        path = quantized(up).captured.export_float(tmp_path / f"{up}.tflite")
        assert TfliteFile(Path(path)).is_fixed == up


def test_other_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown batch '8'; choose 1 or dynamic"):
        quantized().export(tmp_path / "m.tflite", batch="8")
    with pytest.raises(OptionError, match=r"for one sample; leave out 'batch'"):
        quantized(target="tflite-micro").export(tmp_path / "m.tflite", batch="dynamic")


class WithoutBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) @ table


def test_a_model_without_samples_has_none_to_take_one_of(tmp_path: Path) -> None:
    data = [(torch.randn(16, 8), torch.randn(8, 8)) for _ in range(3)]
    model = qtool.quantize(
        WithoutBatch().eval(),
        data,
        target="tflite",
        dynamic={"x": {0: "batch"}, "table": {}},
        accuracy="fast",
    )
    with pytest.raises(ExportError, match="needs a batch in dimension 0 of every input"):
        model.export(tmp_path / "m.tflite", verify=False, batch="1")


class Texts(nn.Module):
    """Texts of any length, whose tokens are one dimension of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.linear(self.table(ids))
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return (heads @ heads.transpose(-1, -2)).mean(-1).sum(-1)


@needs_litert
def test_the_error_is_measured_on_samples_of_the_files_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lengths = {"ids": {0: "batch", 1: "length"}}
    data = [torch.randint(0, 20, (16, 6 + 3 * (i % 2))) for i in range(8)]
    model = qtool.quantize(Texts().eval(), data, target="tflite", dynamic=lengths, accuracy="fast")
    result = model.export(tmp_path / "m.tflite")
    estimate = result.fidelity.estimate
    assert estimate is not None
    (size,) = TfliteFile(tmp_path / "m.tflite").inputs[0].shape[1:]
    fitting = [b for b in model._estimates.batches if b.arrays()[0].shape[1] == size]
    assert 0 < sum(b.size for b in fitting) == estimate.samples
    assert len(fitting) < len(model._estimates.batches)
    other = np.zeros((2, 15 - size), np.int64)
    # LiteRT runs it, on tokens of one text in the place of others
    with pytest.raises(
        DataError, match=rf"shape \[2, {15 - size}\].* for \[batch, {size}\]; pad or"
    ):
        LitertSession(tmp_path / "m.tflite").run([other])
