"""Modules that are seldom met: right, or refused in one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import CaptureError, PlanError, QtoolError
from qtool.frontends.load_model import load_model
from tests.backends.onnx.export.networks import run
from tests.named_cases import cases
from tests.needs import needs_litert

IMAGE = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


class Cyclic(nn.Module):
    """Its child holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.child = nn.Conv2d(3, 4, 3), nn.Module()
        self.child.add_module("parent", self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def cyclic() -> nn.Module:
    model = Cyclic()
    for module in (model, model.conv, model.child):
        module.training = False  # .eval() does not end
    return model


class PartlyHalf(nn.Module):
    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3).half()
        self.cast = cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.second(x.half() if self.cast else x).float()


class ComplexWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(8, 8, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixed(x.to(torch.complex64)).real


class FailsAfterwards(nn.Module):
    """Runs while it is traced, and not when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting():
            raise RuntimeError("the licence has ended")
        return self.conv(x)


class Unreadable(nn.Module):
    """Its attributes, name and text cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def __getattr__(self, name: str) -> Any:
        if name in ("_forward_hooks", "conv") or name.startswith("_"):
            return super().__getattr__(name)
        raise RuntimeError(name)

    def _get_name(self) -> str:
        raise ValueError("no name")

    def __repr__(self) -> str:
        raise ValueError("no text")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_attributes_that_cannot_be_read() -> None:
    made = qtool.quantize(Unreadable().eval(), [IMAGE], accuracy="fast")
    assert [d.node for d in made.plan.nodes if d.computes_on_codes] == ["conv"]


@pytest.mark.parametrize("part", ["model", "data", "call"])
def test_inference_mode(part: str, tmp_path: Path) -> None:
    """A model or data made in it, and a call in it, give the same file as without."""
    torch.manual_seed(0)
    plain = layers()
    with torch.inference_mode():
        copied = layers()
        copied.load_state_dict(plain.state_dict())
        data = [IMAGE.clone()]
    qtool.quantize(plain, [IMAGE], accuracy="fast").export(tmp_path / "plain.onnx", timing=0)
    with torch.inference_mode(part == "call"):
        made = qtool.quantize(
            copied if part == "model" else plain,
            data if part == "data" else [IMAGE],
            accuracy="fast",
        )
        made.export(tmp_path / "other.onnx", timing=0)
    assert (tmp_path / "other.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


@cases(
    "make, image, error, sentence",
    (cyclic, IMAGE, CaptureError, "recursion"),
    (lambda: PartlyHalf(False).eval(), IMAGE, CaptureError, "does not run"),
    (lambda: ComplexWeights().eval(), IMAGE, PlanError, "is complex64"),
    (lambda: FailsAfterwards().eval(), IMAGE, CaptureError, "the licence has ended"),
)
def test_refused(
    make: Callable[[], nn.Module], image: torch.Tensor, error: type[QtoolError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        qtool.quantize(make(), [image], accuracy="fast")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("same", [True, False], ids=["data of that type", "data in float32"])
def test_models_of_another_type_are_quantized_in_float32(dtype: torch.dtype, same: bool) -> None:
    net = layers().to(dtype)
    made = qtool.quantize(net, [IMAGE.to(dtype) if same else IMAGE], accuracy="fast")
    name = str(dtype).removeprefix("torch.")
    assert made.notes[0] == f"the model is in {name}: a copy in float32 is quantized"
    assert (f"the data is in {name}: it is converted to float32" in made.notes) == same
    assert next(net.parameters()).dtype is dtype
    assert {i.dtype for i in made.graph.inputs} == {"float32"}


def test_a_part_in_half_precision_stays_in_float() -> None:
    found = qtool.quantize(PartlyHalf(True).eval(), [IMAGE], accuracy="fast")
    assert [d.node for d in found.plan.nodes if d.computes_on_codes] == ["first"]


def test_a_factory_of_a_module_that_holds_itself() -> None:
    with pytest.raises(CaptureError, match="contains itself as a submodule"):
        load_model("tests.frontends.torch.test_odd_modules:Cyclic")


class Functions(nn.Module):
    """What passes, kernels and writers make constants for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.first(x)))
        x = torch.cat([F.leaky_relu(self.second(x)) + x, torch.sigmoid(x) * x], 1)[:, :8]
        return self.head(F.layer_norm(F.avg_pool2d(x, 2).mean((2, 3)), (8,)))


FORMS = [
    ("onnxruntime", None),
    pytest.param("tflite", None, marks=needs_litert),
    ("onnxruntime", "dynamic"),
]


@pytest.mark.parametrize(("target", "mode"), FORMS)
def test_a_default_dtype_of_float64_changes_nothing(
    target: str, mode: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Functions().eval()
    suffix = ".tflite" if target == "tflite" else ".onnx"
    files = []
    for dtype in (torch.float32, torch.float64):
        path = tmp_path / f"{dtype}{suffix}"
        torch.set_default_dtype(dtype)
        try:
            quantized = qtool.quantize(model, [IMAGE], target=target, mode=mode, accuracy="fast")
            quantized.export(path, timing=0)
            assert qtool.verify(path, samples=4).passed
        finally:
            torch.set_default_dtype(torch.float32)
        files.append(path.read_bytes())
    assert files[0] == files[1]


class Stored(nn.Module):
    """Reads numbers that it stores, as flows read whether they are initialised."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(8, 8), nn.Parameter(torch.tensor([0.5]))
        self.register_buffer("shift", torch.tensor(1.3))
        self.register_buffer("ready", torch.tensor(ready))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).roll(-round(self.shift.cpu().item() * 2), -1)
        if self.ready:
            y = y * self.scale.exp().item()
        return y + int(self.shift) * self.scale


@pytest.mark.parametrize("ready", [True, False])
def test_stored_numbers_are_constants(ready: bool, tmp_path: Path) -> None:
    model, data = Stored(ready).eval(), torch.randn(64, 8)
    qtool.quantize(model, [data], accuracy="fast").export(tmp_path / "a.onnx")
    (actual,) = run((tmp_path / "a.onnx").read_bytes(), [data])
    expected = model(data).detach().numpy()
    assert abs(actual - expected).max() < 0.05 * abs(expected).max()


def test_a_number_that_the_model_writes_is_no_constant() -> None:
    class Counts(Stored):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.shift.add_(1)
            return super().forward(x)

    with pytest.raises(CaptureError):
        qtool.capture_model(Counts(True).eval(), torch.randn(4, 8))
