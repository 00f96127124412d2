"""Inputs that kernels of weight-only layers round, against ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.session import run, session
from qtool.core.sqnr import sqnr
from qtool.planning.input_rounding import RoundedInput, insert_input_rounding
from tests.api.two_bits import needs_two_bits

AGREEMENT_DB = 90.0
"""Of simulation and runtime: float sums in another order."""
FEATURES = 136  # no multiple of any block
FORMS: dict[str, dict[str, Any]] = {
    "int8 per channel": {"as": "int8-weights"},
    "int8 in blocks": {"as": "int8-weights", "block": 64},
    "int4 in blocks": {"as": "int4-weights"},
    "int4 per channel": {"as": "int4-weights", "block": "channel"},
    "int2 per channel": {"as": "int2-weights", "block": "channel"},
}


class Two(nn.Module):
    """Two layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(FEATURES, 24), nn.Linear(FEATURES, 40, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), self.b(x)


class Recurrent(nn.Module):
    """An LSTM from given or zero states, and a layer on its hidden and last states."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(24, 32, batch_first=True, **options)
        self.head = nn.Linear(32 * (1 + self.lstm.bidirectional), 8)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x, states or None)
        return self.head(y), h, c


RECURRENT: dict[str, dict[str, Any]] = {
    "one direction": {},
    "no bias": {"bias": False},
    "two directions, two layers": {"num_layers": 2, "bidirectional": True},
}


def sequences(batch: int, states: int = 0) -> tuple[torch.Tensor, ...]:
    """Return sequences of unlike size, which share the range of their batch; and states."""
    random = torch.Generator().manual_seed(1)
    size = torch.linspace(0.5, 4, batch)[:, None, None]
    x = torch.randn(batch, 10, 24, generator=random) * size
    return x, *(
        torch.rand(states, batch, 32, generator=random) - 0.5 for _ in range(2 * (states > 0))
    )


def dynamic_lstm(inputs: tuple[torch.Tensor, ...], **options: Any) -> QuantizedModel:
    network = Recurrent(**options).eval()
    return quantize(network, [inputs], mode="dynamic", accuracy="fast")


def roundings(module: nn.Module) -> list[RoundedInput]:
    return [m for m in module.modules() if isinstance(m, RoundedInput)]


def planned(
    rule: dict[str, Any], samples: int = 32, accuracy: str = "fast", target: str = "onnxruntime"
) -> tuple[QuantizedModel, torch.Tensor]:
    x = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(1))
    recipe = [{"select": "*", **rule}]
    model = quantize(Two().eval(), x.split(32), target=target, recipe=recipe, accuracy=accuracy)
    return model, x


@pytest.mark.parametrize(
    "form", [pytest.param(f, marks=needs_two_bits if "int2" in f else ()) for f in FORMS]
)
def test_the_simulation_rounds_as_the_runtime(form: str, tmp_path: Path) -> None:
    model, x = planned(FORMS[form])
    model.export(tmp_path / "model.onnx", verify=False)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    written = [y.detach().numpy() for y in model(x)]
    insert_input_rounding(model.module, model.plan)
    assert len(roundings(model.module)) == 1  # for both layers
    for real, rounded, plain in zip(actual, model(x), written, strict=True):
        np.testing.assert_allclose(rounded.detach(), real, atol=1e-5 * np.abs(real).max())
        assert np.abs(plain - real).max() > 1e-3 * np.abs(real).max()


def test_nothing_is_rounded_for_another_runtime_or_mode() -> None:
    for model in (
        planned(FORMS["int8 per channel"], target="tflite")[0],
        planned({"as": "static"})[0],
    ):
        insert_input_rounding(model.module, model.plan)
        assert not roundings(model.module)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("form", RECURRENT)
def test_a_dynamic_lstm_rounds_input_and_state_as_the_runtime(
    form: str, batch: int, tmp_path: Path
) -> None:
    model = dynamic_lstm(sequences(16), **RECURRENT[form])
    model.export(tmp_path / "model.onnx", verify=False)
    check_lstm(model, sequences(batch), tmp_path / "model.onnx")


def test_a_dynamic_lstm_with_states(tmp_path: Path) -> None:
    model = dynamic_lstm(sequences(16, states=1))
    model.export(tmp_path / "model.onnx", verify=False)
    check_lstm(model, sequences(16, states=1), tmp_path / "model.onnx")


def check_lstm(model: QuantizedModel, inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """Compare the simulation and the graph to export with the runtime on one thread, by which all
    samples of a batch share the range of the state."""
    runtime = run(session(path, threads=1), [x.numpy() for x in inputs])
    with torch.no_grad():
        real, stated, exported = (
            m(*inputs) for m in (model.reference.module, model.module, model.qdq)
        )
        insert_input_rounding(model.module, model.plan)
        simulated = model.module(*inputs)
    for each in zip(runtime, simulated, exported, stated, real, strict=True):
        file, rounded, lowered, plain, exact = map(np.asarray, each)
        assert (sqnr(file, rounded) or 200) > AGREEMENT_DB
        assert (sqnr(file, lowered) or 200) > AGREEMENT_DB
        assert sqnr(exact, plain) > sqnr(exact, file)


def test_a_dynamic_lstm_is_the_costliest_layer_if_its_rounding_is(tmp_path: Path) -> None:
    network = Recurrent().eval()
    (x,) = sequences(16)
    x[..., 0] *= 500  # one range holds the others
    with torch.no_grad():
        network.lstm.weight_ih_l0[:, 0] /= 500
    model = quantize(network, [x], mode="dynamic", recover=[])
    fidelity = model.export(tmp_path / "model.onnx").fidelity
    layer, alone = fidelity.costliest[0]
    assert layer == "lstm"
    assert alone == pytest.approx(fidelity.worst, abs=3)  # on other samples


def test_an_lstm_is_trained_through_its_rounding() -> None:
    (x,) = sequences(4)
    model = dynamic_lstm((x,))
    weights = list(model.module.parameters())
    expected = torch.autograd.grad(model(x)[0].square().sum(), weights)
    insert_input_rounding(model.module, model.plan)
    actual = torch.autograd.grad(model(x)[0].square().sum(), weights)
    for a, b in zip(actual, expected, strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.99


def test_rounding_passes_the_gradient_on_and_keeps_rows_of_zeros() -> None:
    x = torch.zeros(2, 40).requires_grad_()
    y = RoundedInput("layer", 32)(x)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert bool((x.grad == 1).all())


def test_the_estimate_contains_the_rounding(tmp_path: Path) -> None:
    """With 8-bit weights it is a large part of the error."""
    model, x = planned(FORMS["int8 per channel"], samples=512, accuracy="balanced")
    model.export(tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    with torch.no_grad():
        exact, written = (each(x)[0].numpy() for each in (model.reference.module, model.module))
    estimate, without = model.fidelity.estimate.pooled_db, sqnr(exact, written)
    assert estimate is not None
    assert without is not None
    assert estimate == pytest.approx(sqnr(exact, actual), abs=0.2)
    assert without > estimate + 1
