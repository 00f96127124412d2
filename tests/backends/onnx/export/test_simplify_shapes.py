"""What a view or an expansion of dynamic sizes becomes in a file: no size is computed that follows
from the input, and none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from qtool import capture_model
from qtool.backends.onnx.export import float_onnx
from tests.backends.onnx.export.networks import Applied

SIZES = ("Shape", "Concat", "Squeeze", "Gather")


def written(function: Callable[[torch.Tensor], torch.Tensor]) -> onnx.ModelProto:
    """Of [batch, time, 12], both dynamic; shown to be right at other sizes."""
    captured = capture_model(
        Applied(lambda _, x: function(x)).eval(),
        torch.randn(2, 5, 12),
        {"x": {0: "batch", 1: "time"}},
    )
    model = float_onnx(captured.graph)
    session = ort.InferenceSession(model.SerializeToString())
    for sizes in ((2, 5), (1, 1), (3, 7)):
        x = torch.randn(*sizes, 12)
        (found,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-6, atol=1e-6)
    return model


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads": lambda x: x.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
    "heads joined": lambda x: (
        x.view(x.shape[0], x.shape[1], 3, 4).sin().reshape(x.shape[0], x.shape[1], 12)
    ),
    "repeated": lambda x: x[:, None].expand(x.shape[0], 4, x.shape[1], 12).cos(),
    "one left over": lambda x: x.transpose(1, 2).reshape(x.shape[0], -1, 3).exp(),
}


@pytest.mark.parametrize("name", KEPT)
def test_no_size_is_computed(name: str) -> None:
    found = operators(written(KEPT[name]))
    assert not any(found[kind] for kind in SIZES), found


def test_what_is_computed_is_computed_once() -> None:
    def crossed(x: torch.Tensor) -> torch.Tensor:
        swapped = x.reshape(x.shape[1], x.shape[0], 12) + 1
        return swapped.cos().reshape(x.shape[0] * x.shape[1], 12).reshape(x.shape[1], -1, 12) * 2

    assert operators(written(crossed))["Shape"] <= 2  # one for each size


def test_an_empty_tensor_keeps_its_zero() -> None:
    model = written(lambda x: torch.cat([x, x.new_zeros(0, 12).reshape(x.shape[0], 0, 12)], 1))
    assert operators(model)


NEGATIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half rounded up": lambda x: x[:, : -(-x.shape[1] // 2)],
    "of a difference": lambda x: x + (1 - x.shape[1]) // 2,
    "by a negative size": lambda x: x + 7 * x.shape[1] // (-1 - x.shape[1]),
    "what is left": lambda x: x + -x.shape[1] % 3,
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_sizes_are_divided_as_in_python(name: str) -> None:
    """Down, not towards zero."""
    written(NEGATIVE[name])
