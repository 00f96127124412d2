"""What runs where, and what reads the parts of a result."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.formats import open_model
from qtool.core.sqnr import sqnr
from qtool.core.types import UINT8, UINT16, Derived, Observed, Requantized
from qtool.planning.result_parts import refine_results
from tests.planning.targets.converted import captured


def small_head(target: str) -> tuple[QuantizedModel, torch.Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)).eval()
    x = torch.randn(64, 64)
    return quantize(network, [x], target=target, accuracy="fast", observer="minmax"), x


def test_the_simulation_has_the_codes_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    model, x = small_head("tflite")
    model.export(tmp_path / "model.tflite", verify=False)
    (file,) = open_model(tmp_path / "model.tflite").run([x.numpy()])
    with torch.no_grad():
        real, coarse = model.reference.module(x).numpy(), model(x).numpy()
        refine_results(model.module, model.plan)
        fine = model(x).numpy()
    assert sqnr(real, fine) == pytest.approx(sqnr(real, file), abs=0.2)
    assert sqnr(real, fine) > sqnr(real, coarse) + 0.5
    refine_results(model.module, model.plan)  # a second time it changes nothing
    with torch.no_grad():
        np.testing.assert_array_equal(model(x).numpy(), fine)


@pytest.mark.parametrize("target", ["tflite-micro", "onnxruntime"])
def test_other_targets_have_the_codes_of_the_plan(target: str) -> None:
    model, x = small_head(target)
    before = model(x)
    refine_results(model.module, model.plan)
    assert torch.equal(model(x), before)


def types(recipe: list[dict[str, str]], network: str = "residual_concat") -> dict[str, str]:
    """Point -> its type, and how it comes by it, of points that no type of weights concerns."""
    found = {}
    for point in captured(network).plan("qnn", recipe=recipe).points:
        if isinstance(point.spec, Observed) and point.spec.qtype in (UINT8, UINT16):
            found[point.name] = f"{point.spec.qtype}"
        elif isinstance(point.spec, Requantized):
            found[point.name] = f"{point.spec.qtype} from {point.spec.point}"
    return found


def test_one_type_needs_one_point_for_each_tensor() -> None:
    assert set(types([]).values()) == {"uint8"}
    assert set(types([{"select": "*", "activations": "uint16"}]).values()) == {"uint16"}


def test_codes_are_requantized_for_readers_of_another_type() -> None:
    found = types([{"select": "second", "activations": "uint16"}])
    assert {n: t for n, t in found.items() if n.startswith(("relu", "second"))} == {
        "relu": "uint8",
        "relu.uint16": "uint16 from relu",
        "second": "uint16",
        "second.uint8": "uint8 from second",
        "relu_2": "uint8",
    }


def test_a_float_tensor_is_quantized_once_for_each_type() -> None:
    found = types([{"select": "expand", "activations": "uint16"}], "depthwise")
    assert (found["x"], found["x.uint8"]) == ("uint16", "uint8")


def test_a_clamp_left_in_float_has_the_type_of_its_reader() -> None:
    rules = [{"select": "first", "as": "float"}, {"select": "relu", "as": "float"}]
    found = types([*rules, {"select": "second", "activations": "uint16"}])
    assert (found["relu"], found["relu.uint8"]) == ("uint16", "uint8")


def test_a_bias_goes_with_the_type_that_its_layer_reads() -> None:
    rule = {"select": "second", "activations": "uint16"}
    plan = captured("residual_concat").plan("qnn", recipe=[rule])
    assert plan.point("second.bias").spec == Derived("relu.uint16", "second.weight")
