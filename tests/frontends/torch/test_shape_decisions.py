"""Sizes that a model decides by are said, and no others."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import CaptureError
from tests.passes.differential import Function

SHAPE = (2, 8, 12)
BOTH = {"x": {0: "batch", 1: "time"}}
Make = Callable[[Tensor], Tensor]


def _wide(x: Tensor) -> int:
    return x.shape[1]


FIXED: dict[str, tuple[Make, str]] = {
    "half": (lambda x: x[:, int(_wide(x) / 2) :], "8 to 9"),
    "scaled": (lambda x: F.interpolate(x.mT, size=int(0.5 * _wide(x))), "8 to 9"),
    "a loop": (lambda x: torch.cat([x[:, i : i + 1] for i in range(_wide(x) // 4)], 1), "8 to 11"),
}
DECIDED: dict[str, tuple[Make, str]] = {
    "even": (lambda x: x + 1 if _wide(x) % 2 == 0 else x, "a multiple of 2"),
    "long": (lambda x: x + 1 if _wide(x) > 5 else x, "6 or more"),
}
FREE: dict[str, Make] = {
    "half": lambda x: x[:, _wide(x) // 2 :],
    "half rounded up": lambda x: x[:, math.ceil(_wide(x) / 2) - 1 :],
    "scaled": lambda x: F.interpolate(x.mT, scale_factor=0.5),
    "views": lambda x: x.reshape(x.shape[0], _wide(x), 3, 4).flatten(2),
    "another branch, the same values": lambda x: x + 1 if _wide(x) > 5 else 1 + x,
    "pairs, which other sizes have not": lambda x: x.reshape(x.shape[0], -1, 24),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_size_that_decides_alone_is_fixed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function, condition = FIXED[name]
    graph = qtool.capture_model(Function(function).eval(), torch.randn(SHAPE), BOTH).graph
    assert graph.inputs[0].shape == ("batch", 8, 12)
    (sentence,) = graph.size_conditions
    assert sentence.startswith("dimension 1 (time) of input 'x' is fixed to 8: at time 4 ")
    where = f"dimension 1 (time) of input 'x' is {condition}"
    assert f"it is correct only where {where}: the model branches on that" in sentence
    assert f"warning: {sentence}" in caplog.messages


@pytest.mark.parametrize("name", DECIDED)
def test_what_is_decided_is_said(name: str) -> None:
    function, condition = DECIDED[name]
    graph = qtool.capture_model(Function(function).eval(), torch.randn(SHAPE), BOTH).graph
    (note,) = graph.size_conditions
    where = f"dimension 1 (time) of input 'x' is {condition}"
    assert note.startswith(f"the file is correct only where {where}: ")


@pytest.mark.parametrize("name", FREE)
def test_what_is_free_is_not_spoken_of(name: str) -> None:
    graph = qtool.capture_model(Function(FREE[name]).eval(), torch.randn(SHAPE), BOTH).graph
    assert graph.size_conditions == ()


def test_it_is_a_note_of_the_model() -> None:
    layer = nn.Linear(12, 4)
    x = torch.randn(SHAPE)
    model = Function(lambda x, layer: layer(FIXED["half"][0](x)), layer).eval()
    assert any("only where" in n for n in qtool.quantize(model, [x], dynamic=BOTH).notes)
    swapped = Function(lambda x, layer: layer(DECIDED["even"][0](x.transpose(0, 1))), layer).eval()
    made = qtool.quantize(swapped, [x.transpose(0, 1)])
    assert any("(batch) of input 'x' is a multiple of 2:" in n for n in made.notes)


def test_what_is_no_model() -> None:
    with pytest.raises(CaptureError, match=r"not a name; .*qtool\.load_model"):
        qtool.quantize("model.onnx", [torch.randn(SHAPE)])  # type: ignore[arg-type]  # the test
