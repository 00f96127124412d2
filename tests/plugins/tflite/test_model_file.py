"""TFLite files as model files: restored, in float, timed; what a microcontroller needs."""

import itertools
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.formats import open_file
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.evaluation.latency.node_times import profile_nodes
from qtool.evaluation.restored_model import restore
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.conversion_record import ENTRY
from qtool.plugins.tflite.file import Operator, Tensor, load, save
from qtool.plugins.tflite.session import LitertSession
from qtool.plugins.tflite.tflite_file import TfliteFile
from tests.needs import needs_litert
from tests.planning.targets.converted import captured, converted, samples


class Layouts(nn.Module):
    """Kernels whose weights lie in another order in the file: of signals, transposed, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.signal = nn.Conv1d(4, 6, 3, padding=1)
        self.image = nn.Conv2d(1, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.slopes = nn.PReLU(3)
        self.head = nn.Linear(3 * 8 * 12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.signal(x).relu().unsqueeze(1)
        x = self.slopes(self.up(self.depthwise(self.image(x)).relu()))
        scores: torch.Tensor = self.head(x.flatten(1))
        return scores


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[qtool.QuantizedModel, Path]:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("files") / "layouts.tflite"
    model = qtool.quantize(Layouts().eval(), [signals(16)], target="tflite", accuracy="fast")
    model.export(path, verify=False)
    return model, path


def signals(count: int) -> torch.Tensor:
    return torch.randn(count, 4, 8, generator=torch.Generator().manual_seed(1))


def test_the_model_of_a_file_is_the_one_exported(
    layouts: tuple[qtool.QuantizedModel, Path],
) -> None:
    model, path = layouts
    again = restore(path, qtool.capture_model(Layouts().eval(), signals(16)), model.sample)
    with torch.no_grad():
        assert torch.equal(again(signals(4)), model(signals(4)))


@pytest.mark.parametrize("name", ["digits", "residual_concat", "activations"])
def test_models_of_other_networks_are_restored(name: str, tmp_path: Path) -> None:
    model, path = converted(name, "tflite"), tmp_path / "model.tflite"
    model.export(path, verify=False)
    again = restore(path, captured(name), Batch((samples(name)[:8],)))
    with torch.no_grad():
        assert torch.equal(again(samples(name)), model(samples(name)))


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    converted("digits", "tflite").export(path, verify=False)
    model = load(path)
    text = zlib.decompress(model.metadata[ENTRY])
    for damaged in (b"", text, zlib.compress(text[:-9]), zlib.compress(b"[]")):
        save(replace(model, metadata={**model.metadata, ENTRY: damaged}), path)
        with pytest.raises(VerificationError, match="is damaged"):
            open_file(path).conversion()
    swapped = text.replace(b'"order":[0,2,3,1]', b'"order":[0,2,3,3]')
    assert swapped != text
    save(replace(model, metadata={**model.metadata, ENTRY: zlib.compress(swapped)}), path)
    with pytest.raises(VerificationError, match="is damaged"):
        open_file(path).conversion()


def outputs(file: TfliteFile, op: Operator) -> list[Tensor]:
    return [file.model.tensors[i] for i in op.outputs]


def test_single_operators_have_no_times(layouts: tuple[qtool.QuantizedModel, Path]) -> None:
    assert profile_nodes([layouts[1]], [signals(2).numpy()], runs=1) == ()


def test_only_files_for_microcontrollers_have_a_deployment(tmp_path: Path) -> None:
    for name in ("tflite", "tflite-micro"):
        converted("digits", name).export(tmp_path / f"{name}.tflite", verify=False)
    assert open_file(tmp_path / "tflite.tflite").deployment() is None
    facts = open_file(tmp_path / "tflite-micro.tflite").deployment()
    assert facts.flash_bytes == (tmp_path / "tflite-micro.tflite").stat().st_size
    assert (facts.arena_bytes is None) == any("arena" in note for note in facts.notes)


@needs_litert
def test_timed_runs_are_on_kept_inputs(layouts: tuple[qtool.QuantizedModel, Path]) -> None:
    session = LitertSession(layouts[1])
    batch, ticks = signals(3).numpy(), itertools.count()
    expected = session.run([batch])
    session.run([0 * batch])
    assert session.seconds([batch], 4, lambda: next(ticks)) == 1
    last = litert.outputs(session._interpreter)[0]
    assert np.array_equal(last, expected[0][: len(last)])
