"""Each edit of a model that an error names is made: the edited model is captured."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.core.remedies import ModelEdit
from qtool.frontends.state_dicts import load_weights
from tests.mistakes.nets import IMAGES, custom, flat_net, image_net, quantize
from tests.mistakes.remedies import check_edit

Function = Callable[[torch.Tensor, torch.Tensor], Any]


def captured(function: Function, dynamic: Any = None, data: Any = IMAGES) -> Callable[[], object]:
    """Return the capture of a network that ends with a function of its result and its input."""
    return lambda: qtool.capture_model(custom(function), data, dynamic)


def of(net: Callable[[], nn.Module], data: Any = IMAGES, dynamic: Any = None) -> Any:
    return lambda: qtool.capture_model(net(), data, dynamic)


@dataclass
class Boxes:
    """A result that torch.export does not know."""

    scores: torch.Tensor


@dataclass
class KnownBoxes:
    scores: torch.Tensor


torch.export.register_dataclass(KnownBoxes, serialized_type_name="tests.KnownBoxes")


def _on_gpu(y: torch.Tensor) -> torch.Tensor:
    raise AssertionError("Torch not compiled with CUDA enabled")  # as y.cuda() without a GPU


class Padded(nn.Module):
    """A recurrent network of padded sequences."""

    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.layer, self.packs = nn.LSTM(3, 4, batch_first=True), packs

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self.packs:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            return self.layer(packed)[1][0]
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return self.layer(x)[0] * mask[..., None]


class Counting(nn.Module):
    """Adds a state, which it stores or takes."""

    def __init__(self, stores: bool) -> None:
        super().__init__()
        self.layer, self.stores = nn.Linear(12, 3), stores
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, count: torch.Tensor | None = None) -> Any:
        if self.stores:
            self.count += 1
            return self.layer(x) + self.count
        return self.layer(x) + count, count + 1


class Scaled(nn.Module):
    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(12, 3), scale

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * (self.scale or scale)


class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, self.mean, self.mean + 1, training=self.training)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))


class Halved(nn.Linear):
    """Casts its input to a type; None: to that of its weights."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__(VECTORS.shape[1], 4)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.dtype or self.weight.dtype))


class Cast(nn.Module):
    """Computes in bfloat16, or does not."""

    def __init__(self, casts: bool) -> None:
        super().__init__()
        self.layer, self.casts = nn.Linear(12, 3), casts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.casts:
            return self.layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x).float()


class Projected(nn.Module):
    """An LSTM, and a linear layer in place of its projection."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0])


def lazy(has_run: bool = True) -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(4, 3)).eval()
    if has_run:
        net(IMAGES)
        net.load_state_dict(nn.Sequential(nn.Conv2d(3, 4, 3)).state_dict())
    return net


def quantized(net: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that these will end
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(net), {nn.Linear})


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that these will end
        return torch.jit.trace(image_net(), IMAGES)


def in_tflite(*layers: nn.Module) -> Callable[[], object]:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), *layers).eval()
    return lambda: quantize([IMAGES], net, target="tflite").export("out.tflite")


def pooled(counts: bool) -> Callable[[], object]:
    return in_tflite(nn.AvgPool2d(3, 2, 1, count_include_pad=counts))


class PerGroup(nn.Module):
    """A transposed convolution of three groups, with a layer for each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ConvTranspose2d(2, 2, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = zip(self.layers, x.chunk(3, 1), strict=True)
        return torch.cat([layer(part) for layer, part in parts], 1)


def weights_for(size: int) -> Callable[[], object]:
    def call() -> None:
        torch.save(nn.Linear(2, 1).state_dict(), "weights.pt")
        load_weights(nn.Linear(size, 1), "weights.pt")

    return call


def in_default(dtype: torch.dtype) -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return qtool.capture_model(image_net().float(), IMAGES.float())
    finally:
        torch.set_default_dtype(before)


def on_device(device: str) -> object:
    net = image_net()
    with torch.device(device):
        return qtool.capture_model(net, IMAGES)


SEQUENCES = torch.randn(8, 5, 3)
LENGTHS = torch.tensor([5, 4, 3, 5, 2, 5, 1, 5])
VECTORS = torch.randn(40, 12)
BRANCH = captured(lambda y, x: y if x.sum() > 0 else -y)
NUMBER = captured(lambda y, x: y[:, : int(x.argmax())])
ONE = captured(lambda y, x: y.squeeze(0).reshape(4, 36), data=IMAGES[:1])
EDITS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "return a tensor, or a tuple or dict of tensors": (
        captured(lambda y, x: Boxes(y)),
        captured(lambda y, x: {"scores": y}),
    ),
    "register the class with torch.export.register_dataclass": (
        captured(lambda y, x: Boxes(y)),
        captured(lambda y, x: KnownBoxes(y)),
    ),
    "call it with a batch first, then load its weights": (of(lambda: lazy(False)), of(lazy)),
    "give the padded tensor to the layer, and a mask to the layers that read its result": (
        of(lambda: Padded(True).eval(), (SEQUENCES, LENGTHS)),
        of(lambda: Padded(False).eval(), (SEQUENCES, LENGTHS)),
    ),
    "compute with x.shape where it has len(x), int(...) or a loop over that size": (
        captured(
            lambda y, x: sum(y[:, :, i : i + 1] for i in range(y.shape[2])), {"x": {2: "rows"}}
        ),
        captured(lambda y, x: y.sum(2, keepdim=True), {"x": {2: "rows"}}),
    ),
    "the first dimension of every input must be the batch": (
        ONE,
        captured(lambda y, x: y.flatten(1), data=IMAGES[:1]),
    ),
    "fix every size with dynamic={}": (
        ONE,
        captured(lambda y, x: y.squeeze(0).reshape(4, 36), {}, IMAGES[:1]),
    ),
    "compute with the tensor itself": (
        NUMBER,
        captured(lambda y, x: y * (torch.arange(6) < x.argmax())),
    ),
    "store a constant": (NUMBER, captured(lambda y, x: y[:, :2])),
    "replace the branch by torch.where, a loop by one of a fixed length": (
        BRANCH,
        captured(lambda y, x: torch.where(x.sum() > 0, y, -y)),
    ),
    "fix the decision with a constructor argument": (BRANCH, captured(lambda y, x: y)),
    "rewrite that code": (
        captured(lambda y, x: y + torch.from_numpy(x.numpy()).sum()),
        captured(lambda y, x: y + x.sum()),
    ),
    "quantize the model without it": (
        captured(lambda y, x: y + torch.from_numpy(x.numpy()).sum()),
        captured(lambda y, x: y),
    ),
    "give the original nn.Module": (of(scripted), of(image_net)),
    "give the one inside, model.module": (
        of(lambda: nn.DataParallel(image_net())),
        of(lambda: nn.DataParallel(image_net()).module),
    ),
    "give the float model": (of(lambda: quantized(flat_net()), VECTORS), of(flat_net, VECTORS)),
    "call model.eval() first": (of(lambda: image_net().train()), of(image_net)),
    "call model.float() first": (
        of(lambda: nn.Sequential(image_net(), nn.Linear(5, 2).half()).eval()),
        of(lambda: nn.Sequential(image_net(), nn.Linear(5, 2).half()).eval().float()),
    ),
    "compute in the type of the weights, x.to(self.weight.dtype)": (
        of(lambda: Halved(torch.float16).half().eval(), VECTORS),
        of(lambda: Halved(None).half().eval(), VECTORS),
    ),
    "compute on the device of the input, x.device": (
        captured(lambda y, x: y + _on_gpu(y)),
        captured(lambda y, x: y + y.to(x.device)),
    ),
    "load the weights first": (of(lambda: image_net().to("meta")), of(image_net)),
    "call model.eval() first, and export again": (
        lambda: qtool.capture_model(torch.export.export(image_net().train(), (IMAGES,)), IMAGES),
        lambda: qtool.capture_model(torch.export.export(image_net(), (IMAGES,)), IMAGES),
    ),
    "give the state as an input, and return it": (
        of(lambda: Counting(True).eval(), VECTORS),
        of(lambda: Counting(False).eval(), (VECTORS, torch.zeros(1, 1))),
    ),
    "wrap it in an nn.Module that returns tensors only": (
        captured(lambda y, x: (y, 3)),
        captured(lambda y, x: y),
    ),
    "wrap the model in an nn.Module that takes tensors only and fixes the other arguments": (
        of(lambda: Scaled().eval(), (VECTORS, 2.0)),
        of(lambda: Scaled(2.0).eval(), VECTORS),
    ),
    "leave out torch.autocast in forward, and call float() on that module": (
        of(lambda: Cast(True).eval(), VECTORS),
        of(lambda: Cast(False).eval(), VECTORS),
    ),
    "if that is dropout, call model.eval() and give F.dropout training=self.training": (
        captured(lambda y, x: nn.functional.dropout(y, 0.5)),
        captured(lambda y, x: nn.functional.dropout(y, 0.5, training=False)),
    ),
    "give the module that it was made of": (
        lambda: qtool.noise_input(torch.export.export(image_net(), (IMAGES,))),
        lambda: qtool.noise_input(image_net()),
    ),
    "use the projection's size as hidden size": (
        of(lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True).eval(), SEQUENCES),
        of(lambda: nn.LSTM(3, 2, batch_first=True).eval(), SEQUENCES),
    ),
    "put a linear layer behind the LSTM": (
        of(lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True).eval(), SEQUENCES),
        of(lambda: Projected().eval(), SEQUENCES),
    ),
    "call torch.set_default_dtype(torch.float32) before it": (
        lambda: in_default(torch.float16),
        lambda: in_default(torch.float32),
    ),
    "use count_include_pad=True or no padding": (pooled(False), pooled(True)),
    "write a layer per group in the model": (
        in_tflite(nn.ConvTranspose2d(6, 6, 3, groups=3)),
        in_tflite(PerGroup()),
    ),
    "leave its context first": (lambda: on_device("meta"), lambda: on_device("cpu")),
}
"""Edit -> (a call that is refused with it, the call after the edit)."""


@pytest.mark.parametrize("edit", EDITS)
def test_the_edited_model_is_captured(edit: str, folder: Path) -> None:
    check_edit(ModelEdit, edit, EDITS[edit])
