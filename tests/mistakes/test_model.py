"""Mistakes with the model, in Python."""

from typing import Any

import pytest
import torch
from torch import nn

import qtool
from tests.mistakes.mistake import Case, cases, check_noted, check_refused
from tests.mistakes.nets import IDS, IMAGES, Two, custom, flat_net, image_net, quantize

D = [IMAGES]
A, B, LABELS = torch.randn(40, 4), torch.randn(40, 5), torch.arange(40) % 3
CALL = "CaptureError CallEdit"


def on(model: Any) -> Any:
    return lambda: quantize(D, model)


def capture(dynamic: Any) -> Any:
    return lambda: qtool.capture_model(flat_net(), torch.randn(4, 12), dynamic)


class Loss(nn.Module):
    """Returns the loss of a network alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Two()

    def forward(self, a: torch.Tensor, b: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.net(a, b, labels)["loss"]


def _prepared_by_torch() -> nn.Module:
    from torch.ao.quantization import MinMaxObserver

    return nn.Sequential(image_net(), MinMaxObserver()).eval()


class Masked(nn.Module):
    """Attention over token ids, with a mask of the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def _with_weight(value: float) -> nn.Module:
    net = image_net()
    with torch.no_grad():
        net[4].weight.fill_(value)
    return net


def _padding() -> torch.Tensor:
    padding = torch.zeros(40, 6).bool()
    padding[0] = True
    return padding


def _leave() -> None:
    raise SystemExit(3)


REFUSED: list[Case] = [
    (on(nn.ReLU), CALL, "not the class ReLU; give the module itself"),
    (on(torch.relu), CALL, "not a builtin_function_or_method"),
    (on({"epoch": 3, "model": image_net()}), CALL, "not a dict; give the module itself"),
    (on("resnet18"), CALL, "not a str; give the module itself"),
    (lambda: qtool.quantize(None, D), CALL, "not a NoneType"),
    (lambda: quantize(D, quantize(D)), CALL, "not a QuantizedModel"),
    (lambda: qtool.quantize(D, image_net()), "DataError", "data is a Sequential, a model"),
    (on(custom(lambda y, x: {})), "PlanError ModelEdit", "nothing in this model can run in"),
    (on(nn.Sequential(nn.Softmax(1)).eval()), "PlanError ModelEdit", "nothing in this model"),
    (on(custom(lambda y, x: _leave())), "CaptureError", "it ended the process (sys.exit(3))"),
    (
        on(custom(lambda y, x: (-y.abs() - 1).log())),
        "DataError ModelEdit DataEdit",
        "float model is NaN",
    ),
    (
        on(custom(lambda y, x: y / (y * 0).relu())),
        "DataError ModelEdit DataEdit",
        "float model is Inf",
    ),
    (lambda: quantize(D, _with_weight(torch.nan)), "DataError OtherFile", "the model hold NaN"),
    (lambda: quantize([(IDS, _padding())], Masked().eval()), "DataError ModelEdit DataEdit", "NaN"),
    (lambda: quantize(D, _prepared_by_torch()), "CaptureError ModelEdit", "is a MinMaxObserver"),
    (capture({"x": {0: "n"}}), "UnknownInputError", "dynamic names 'x', which is not an input"),
    (capture({"input": {5: "n"}}), "CaptureError", "'input' has no dimension 5"),
]
NOTED = {
    "the model returns one number for": lambda: quantize([(A, B, LABELS)], Loss().eval()),
    "in float16: a copy in float32": lambda: quantize(D, image_net().half()),
    "in bfloat16: a copy in float32": lambda: quantize(D, image_net().bfloat16()),
    "in float64: a copy in float32": lambda: quantize(D, image_net().double()),
    "float16: a copy": lambda: quantize([IMAGES.half()], image_net().half()),
    "4.weight: weights are zero in 5 of": lambda: quantize(D, _with_weight(0.0)),
}
"""Part of a note -> what the user does."""


@cases(REFUSED)
def test_refused(mistake, kind, names):
    check_refused(mistake, kind, names)


@pytest.mark.parametrize("names", NOTED)
def test_noted(names, caplog):
    check_noted(NOTED[names], names, caplog)


def _no_backend(graph: Any, inputs: Any) -> Any:
    raise AssertionError("torch.compile ran its compiler")


@pytest.mark.parametrize("batch", [(IMAGES, IMAGES[:, 0, 0, 0]), {"image": IMAGES, "label": IDS}])
def test_a_compiled_model_is_taken_without_its_compiler(batch: Any) -> None:
    inner = image_net()
    inner[0] = torch.compile(inner[0], backend=_no_backend)
    quantized = quantize([batch], torch.compile(inner, backend=_no_backend))
    assert "_orig_mod" not in str(quantized)
