"""Graphs are translated as they are where that is enough, and computed right where it is not."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.export import torch_exporter as module
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import run


class Computes(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


PROMOTES = {
    "float and bool": lambda x: x + (x > 0),
    "float and integer": lambda x: x * torch.arange(3),
    "integer and a fraction": lambda x: (x > 0).long() * 0.5,
    "an integer quotient": lambda x: (x > 0).long() / 2,
    "compared with a fraction": lambda x: (x * 2).long() > 0.5,
}
AS_IT_IS = {
    "both conditions": lambda x: torch.where((x > 0) & (x < 1), x, 0.0),
    "one or the other": lambda x: torch.where((x > 1) | (x < 0), x, 0.0),
    "a cast": lambda x: (x > 0).to(torch.float32) * x,
    "dimensions of size 1, and one that is not": lambda x: x[None, :, None].squeeze((0, 2, 3)),
    "less than a number": lambda x: 1 - x,
    "a look-up": lambda x: x[torch.tensor([1, 0])],
}


def written(function: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Writes the function, and gives the largest difference in the runtime."""
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    graph = capture_model(Computes(function).eval(), x).graph
    (found,) = run(float_onnx(graph), (x,), optimise=False)
    return float(np.abs(found.astype(np.float64) - function(x).double().numpy()).max())


@pytest.mark.parametrize("name", PROMOTES)
def test_types_are_promoted_as_torch_does(name: str) -> None:
    assert written(PROMOTES[name]) == 0


@pytest.mark.parametrize("name", AS_IT_IS)
def test_most_graphs_are_not_traced_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("traced again"))
    monkeypatch.setattr(
        "torch.onnx._internal.exporter._fx_passes.insert_type_promotion_nodes",
        lambda _: pytest.fail("types promoted"),
    )
    assert written(AS_IT_IS[name]) == 0


def test_what_has_no_translation_goes_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    whole = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *a, **k: asked.append(a) or whole(*a, **k))
    assert written(torch.special.ndtr) < 1e-6
    assert asked


def test_without_the_parts_of_torch_it_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_registry", lambda *_: None)
    assert written(AS_IT_IS["both conditions"]) == 0


def test_translations_of_few_operators_are_those_of_the_whole_library() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    aten = torch.ops.aten
    wanted = frozenset({aten.relu.default, aten.add.Tensor, aten.special_erf.default, operator.mul})
    few, whole = module._registry(21, (), wanted), ONNXRegistry.from_torchlib(opset_version=21)
    for target in wanted:
        found = [[d.onnx_function for d in r.get_decomps(target)] for r in (few, whole)]
        assert found[0] == found[1] != []
    for other in (aten.sigmoid.default, operator.pow):  # whose source was not read
        assert not few.is_registered(other)
    assert len(whole.functions) > 400  # nor is it lost to others
