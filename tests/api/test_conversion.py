"""calibrate, convert, quantize: every form of model and data comes to the same result."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qtool import QuantizedModel
from qtool.algorithms.pipeline import run_steps
from qtool.api import conversion
from qtool.api.conversion import calibrate, convert, quantize
from qtool.calibration.calibration import Calibration
from qtool.core.errors import DataError
from qtool.core.graph.edit import clone_with_parameters
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import Applied, network, run, samples


def images() -> torch.Tensor:
    return samples("residual", 32)[0]


def parameters(found: QuantizedModel | Calibration) -> list[tuple[str, float, float]]:
    if isinstance(found, Calibration):
        return found.ranges()
    return [
        (name, p.scale.reshape(-1)[0].item(), p.zero_point.reshape(-1)[0].item())
        for name, p in found.parameters.items()
    ]


# --- forms of data -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return capture_model(network("residual"), images())


@pytest.fixture(scope="module")
def reference(model: Any) -> list[tuple[str, float, float]]:
    return parameters(calibrate(model, images().split(8)))


def test_a_loader_with_workers(model: Any, reference: list) -> None:
    loader = DataLoader(TensorDataset(images()), batch_size=8, num_workers=2)
    assert parameters(calibrate(model, loader)) == reference


def test_progress_sees_every_batch_once(model: Any) -> None:
    seen = []

    def progress(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            seen.append(item)
            yield item

    calibrate(model, images().split(8), progress=progress)
    assert len(seen) == 4


# --- forms of models -----------------------------------------------------------------------------


def test_module_program_and_captured_are_one_model(model: Any, reference: list) -> None:
    net = network("residual")
    program = torch.export.export(net, (images(),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert parameters(calibrate(net, images().split(8))) == reference
    assert parameters(calibrate(program, images().split(8))) == reference
    assert capture_model(program).fingerprint == model.fingerprint
    assert capture_model(model) is model


def test_quantize_is_calibrate_and_convert(model: Any, tmp_path: Path) -> None:
    calibration = calibrate(model, [images()])
    calibration.save(tmp_path / "model.calib")
    expected = parameters(quantize(network("residual"), [images()]))
    assert parameters(convert(model, calibration)) == expected
    assert parameters(convert(network("residual"), str(tmp_path / "model.calib"))) == expected


def test_conversion_without_data_verifies_on_made_up_inputs(model: Any, tmp_path: Path) -> None:
    found = convert(model, calibrate(model, [images()]), accuracy="fast")
    (x,) = (t for _, t in found.sample.tensors())
    low, high = images().min(), images().max()
    assert low <= x.min() < x.max() <= high
    assert x.std() > 0.1
    assert found.export(tmp_path / "model.onnx").passed


def test_conversion_with_a_sample_verifies_on_it(model: Any) -> None:
    calibration = calibrate(model, [images()])
    found = convert(model, calibration, sample=images()[:5], accuracy="fast")
    (x,) = (t for _, t in found.sample.tensors())
    assert torch.equal(x, images()[:5])


def test_an_input_of_integers(tmp_path: Path) -> None:
    table = nn.Embedding(10, 6)
    net = Applied(lambda m, x: m.last(m.table(x).mean(1)), table=table, last=nn.Linear(6, 3)).eval()
    tokens = torch.randint(0, 10, (8, 5))
    calibration = calibrate(net, [tokens])
    calibration.save(tmp_path / "model.calib")
    found = convert(
        net, tmp_path / "model.calib", accuracy="fast"
    )  # made-up inputs are valid tokens
    assert found.export(tmp_path / "model.onnx").passed
    (out,) = run((tmp_path / "model.onnx").read_bytes(), (tokens,))
    np.testing.assert_allclose(out, net(tokens).detach(), atol=0.05)


# --- dynamic dimensions --------------------------------------------------------------------------


def fully_convolutional() -> nn.Module:
    first, second = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 2, 1)
    net = Applied(lambda m, x: m.second(m.first(x).relu()), first=first, second=second)
    return net.eval()


def test_other_dimensions_on_request(tmp_path: Path) -> None:
    net, x = fully_convolutional(), images()
    dynamic = {"x": {0: "n", 2: "height", 3: "width"}}
    calibration = calibrate(net, [x, x[:, :, :6, :5]], dynamic=dynamic)
    calibration.save(tmp_path / "model.calib")
    for found in (
        quantize(net, [x, x[:, :, :6, :5]], dynamic=dynamic, accuracy="fast"),
        convert(net, tmp_path / "model.calib", accuracy="fast"),  # as it was calibrated
    ):
        found.export(tmp_path / "model.onnx")
        (value,) = onnx.load(tmp_path / "model.onnx").graph.input
        sizes = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        assert sizes == ["n", 4, "height", "width"]
        (out,) = run((tmp_path / "model.onnx").read_bytes(), (torch.randn(3, 4, 11, 7),))
        assert out.shape == (3, 2, 11, 7)


def test_a_fixed_batch_on_request() -> None:
    net, dynamic = fully_convolutional(), {"x": {2: "height"}}
    found = quantize(net, [images()[:2]], dynamic=dynamic, accuracy="fast")
    (value,) = found.to_onnx().graph.input
    sizes = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
    assert sizes == [2, 4, "height", 8]


def test_one_sample_is_enough() -> None:
    found = quantize(network("residual"), [images()[:1]], accuracy="fast")
    (out,) = run(found.to_onnx(), (images()[:7],))
    assert out.shape == (7, 5)


# --- refusals ------------------------------------------------------------------------------------


def test_capture_needs_a_batch() -> None:
    with pytest.raises(DataError, match="give at least one"):
        capture_model(network("residual"))


def test_the_result_does_not_depend_on_the_random_state() -> None:
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        data = [samples("residual", 16, number) for number in range(2)]
        made.append(quantize(network("residual"), data))
    assert parameters(made[0]) == parameters(made[1])


def test_what_the_last_step_left_is_gone_when_quantize_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model copies its weights; those of the conversion go in circles with their graph, and
    nobody is to walk through all that is old to find them."""
    left = []

    def noted(*given: Any) -> Any:
        work = run_steps(*given)
        module = clone_with_parameters(work.graph.module)  # as steps do that change weights
        left.append(weakref.ref(module))
        return replace(work, graph=replace(work.graph, module=module))

    monkeypatch.setattr(conversion, "run_steps", noted)
    quantize(network("residual"), [images()])
    assert [module() for module in left] == [None]
