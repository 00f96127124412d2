"""Random numbers of a model become an input."""

import copy
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.data import batches
from qtool.core.errors import CaptureError
from tests.frontends.onnx.files import behind_conv, images, loaded


class Voice(nn.Module):
    """Texts of any length -> sound: a prior with noise, and noise at four times its rate."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.prior = nn.Conv1d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose1d(16, 8, 8, 4, 2)
        self.out = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, ids: torch.Tensor, scale: float = 0.6) -> torch.Tensor:
        mean, deviation = self.prior(self.embed(ids).transpose(1, 2)).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(deviation) * scale
        hiss = torch.empty(z.size(0), 8, z.size(2) * 4).normal_()
        return torch.tanh(self.out(F.leaky_relu(self.up(z), 0.1) + 0.01 * hiss))


def voice() -> nn.Module:
    torch.manual_seed(0)
    return Voice().eval()


def texts(*lengths: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"ids": torch.randint(1, 30, (4, n), generator=generator)} for n in lengths]


def test_a_voice_has_its_noise_as_inputs_of_any_length(tmp_path: Path) -> None:
    model, path = qtool.noise_input(voice()), tmp_path / "voice.onnx"
    sizes = {"ids": {0: "batch", 1: "length"}}
    quantized = qtool.quantize(model, texts(8, 13, 18, 23), dynamic=sizes, accuracy="fast")
    quantized.export(path, timing=0)

    session = onnxruntime.InferenceSession(path)
    assert [i.name for i in session.get_inputs()] == ["ids", "noise.0", "noise.1"]
    (batch,) = batches(texts(31), model)
    with torch.no_grad():
        expected = model(**batch.kwargs)
    names = [i.name for i in session.get_inputs()]
    arrays = dict(zip(names, batch.arrays(), strict=True))
    (actual,) = session.run(None, arrays)
    error = (expected - torch.from_numpy(actual)).square().mean()
    assert expected.square().mean() / error > 100  # 20 dB
    how: Any = {"model": model, "dynamic": sizes}
    judged = qtool.evaluate(path, data=texts(9, 13), seconds=0.01, **how).accuracy
    options = qtool.ReportOptions(batch_sizes=(1,), seconds=0.01, samples=1)
    report = qtool.report(path, texts(9, 13), tmp_path / "report", options, **how)
    assert report.accuracy.models[1].sqnr_db == judged.models[1].sqnr_db


def test_a_file_has_what_its_nodes_draw_as_inputs(tmp_path: Path) -> None:
    source, path = tmp_path / "voice.onnx", tmp_path / "int8.onnx"
    model = behind_conv(
        "r = RandomNormalLike (h) z = Add (h, r) c = Conv <strides = [2, 2]> (z, w2) y = Relu (c) "
        "u = RandomUniformLike <low = 1.0, high = 3.0> (y) y0 = Mul (y, u)"
    )
    onnx.save(model, source)
    with pytest.raises(CaptureError, match="RandomNormalLike1 draws random numbers; make them an"):
        qtool.capture_model(qtool.load_onnx(source), images())

    noisy = qtool.noise_input(qtool.load_onnx(source))
    first, again, other = (b.kwargs for b in batches([images(8), images(8), images(7)], noisy))
    assert all(map(torch.equal, first.values(), again.values()))
    assert 1 <= first["noise.1"].min() < first["noise.1"].max() <= 3
    assert other["noise.0"].shape == (7, 4, 8, 8)

    qtool.quantize(noisy, [images(32), images(31)], accuracy="fast").export(path, timing=0)
    session = onnxruntime.InferenceSession(path)
    assert [i.shape for i in session.get_inputs()][:2] == [["N", 3, 8, 8], ["N", 4, 8, 8]]
    _, own = qtool.evaluate(path, noisy, [images(9)]).accuracy.models
    assert own.sqnr_db > 20
    with pytest.raises(CaptureError, match="no node of the graph draws"):
        qtool.noise_input(loaded(behind_conv("y0 = Relu (h)"), tmp_path))


def test_equal_batches_get_equal_noise() -> None:
    model = qtool.noise_input(voice())
    state = torch.get_rng_state()
    first, second, third = batches([*texts(9, 9), texts(9)[0]], model)

    def noise(batch: qtool.core.data.Batch) -> list[torch.Tensor]:
        return batch.kwargs["noise"]

    assert all(map(torch.equal, noise(first), noise(third)))
    assert not any(map(torch.equal, noise(first), noise(second)))
    assert torch.equal(torch.get_rng_state(), state)
    (own,) = batches([first], model)
    assert own.kwargs["noise"] is noise(first)


def test_a_single_draw_is_one_tensor_and_the_model_stays() -> None:
    class Noisy(nn.Linear):
        def forward(self, noise: torch.Tensor) -> torch.Tensor:  # the name is taken
            return super().forward(noise) + torch.full((noise.shape[0], 2), 0.5).bernoulli()

    model = Noisy(3, 2).eval()
    noisy = copy.deepcopy(qtool.noise_input(model))
    (batch,) = batches([torch.zeros(4, 3)], noisy)
    drawn = batch.kwargs["drawn_noise"]
    assert torch.equal(noisy(*batch.args, **batch.kwargs), model.bias + drawn)
    assert type(model) is Noisy
    assert not torch.equal(model(*batch.args), model(*batch.args))


def test_a_model_in_half_precision_draws_for_data_in_float32() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.randn(x.shape[0], 2)

    captured = qtool.capture_model(qtool.noise_input(Noisy(3, 2).half().eval()), torch.randn(4, 3))
    assert [str(i) for i in captured.graph.inputs] == [
        "x: float32[batch, 3]",
        "noise: float32[batch, 2]",
    ]


def test_a_forward_that_a_library_replaced() -> None:
    model = nn.Linear(3, 2).eval()
    model.forward = lambda x: nn.Linear.forward(model, x) + torch.randn(len(x), 2)  # type: ignore[method-assign]  # as it does
    (batch,) = batches([torch.zeros(4, 3)], noisy := qtool.noise_input(model))
    assert torch.equal(noisy(*batch.args, **batch.kwargs), model.bias + batch.kwargs["noise"])


def test_a_model_that_draws_nothing_is_refused() -> None:
    with pytest.raises(CaptureError, match="the model itself calls no"):
        next(batches([torch.zeros(2, 3)], qtool.noise_input(nn.Linear(3, 2))))
