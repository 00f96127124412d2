"""One code on every CPU: all combinations of codes, under every profile of ONNX Runtime."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.profiles import PROFILES
from qtool.calibration.portable_scales import rescale_activations
from qtool.core.types import Derived
from qtool.planning.targets import TARGETS, target

CPUS = target("onnxruntime").agreement
SIDE = 9


class Net(nn.Module):
    """Sums, a product and a gate of codes behind convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branches = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.gate = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for branch in self.branches:
            x = torch.relu(x + branch(x))
        x = x * torch.sigmoid(self.gate(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def quantized(seed: int, **options: object) -> QuantizedModel:
    torch.manual_seed(seed)
    data = [torch.randn(8, 3, SIDE, SIDE)]
    return qtool.quantize(Net().eval(), data, **{"accuracy": "fast", **options})


def every_pair() -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.arange(256).to(torch.uint8)
    return codes.repeat_interleave(256)[None, None], codes.repeat(256)[None, None]


def disagreements(model: QuantizedModel, folder: Path) -> list[str]:
    """Operators of the exported file that give different codes under different profiles."""
    model.export(folder / "model.onnx", verify=False)
    programs = [lower(folder / "model.onnx", name) for name in CPUS]
    names, every = [], torch.arange(256).to(torch.uint8)[None, None]
    for steps in zip(*(p.instructions for p in programs), strict=True):
        pair, table = len(steps[0].inputs) == 2, "sigmoid" in steps[0].name
        if steps[0].kind == "integer" and (pair or table):
            codes = [step.kernel(*(every_pair() if pair else (every,))) for step in steps]
            names += [steps[0].name] if any(not torch.equal(c, codes[0]) for c in codes) else []
    return names


def test_all_profiles_give_one_code_for_all_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(3)
    assert not any(disagreements(quantized(seed), tmp_path) for seed in seeds)
    with monkeypatch.context() as without:
        without.setitem(TARGETS, "onnxruntime", replace(target("onnxruntime"), agreement=()))
        assert any(disagreements(quantized(seed), tmp_path) for seed in seeds)


class Doubled(nn.Module):
    """A tensor that is added to and multiplied by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + x
        return self.last(x * x)


def test_an_operand_may_stand_twice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = [torch.randn(8, 3, SIDE, SIDE)]
    model = qtool.quantize(Doubled().eval(), data, accuracy="fast")
    assert {d.op: len(d.inputs) for d in model.plan.nodes}["add"] == 1
    assert not disagreements(model, tmp_path)
    assert model.export(tmp_path / "verified.onnx").passed


def test_scales_move_by_millionths() -> None:
    agreed, free = quantized(0), quantized(0, target="onnxruntime-x86-vnni")
    moved = [
        abs(float(agreed.parameters[p.name].scale / free.parameters[p.name].scale) - 1)
        for p in free.plan.observed()
    ]
    assert 0 < max(moved) < 1e-4


def test_learned_scales_agree_too(tmp_path: Path) -> None:
    model = quantized(0, accuracy="best")
    assert not disagreements(model, tmp_path)
    assert model.export(tmp_path / "verified.onnx").passed


def test_the_target_names_every_profile_of_onnx_runtime() -> None:
    assert set(CPUS) == {name for name in PROFILES if name.startswith("onnxruntime-")}


def test_what_follows_from_a_scale_follows_its_change() -> None:
    model = quantized(0)
    root = next(p.name for p in model.plan.observed())
    after = rescale_activations(model.plan, model.parameters, {root: 2.0})
    for point in model.plan:
        factor = after[point.name].scale / model.parameters[point.name].scale
        source = point.spec.input if isinstance(point.spec, Derived) else point.name
        assert torch.all(factor == (2.0 if model.plan.root(source) == root else 1.0)), point.name
