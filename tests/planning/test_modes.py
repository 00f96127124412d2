"""Modes: the default, titles, weights alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.core.option_names import MODES
from qtool.core.schemes import SCHEMES, Scales, Scheme, When
from qtool.core.types import INT4, INT8_NARROW, UINT4
from qtool.planning import targets
from qtool.planning.default_mode import default_mode
from qtool.planning.plan import MODE_NAMES, Execution, plan_title
from qtool.planning.recipe import Recipe
from qtool.planning.targets import target
from qtool.planning.weight_only import execution_and_reason, storage_scheme

X86 = target("onnxruntime")
ALONE = {
    "static": (SCHEMES["static"], INT8_NARROW),
    "int4-weights": (SCHEMES["int4-weights"], INT8_NARROW),  # in blocks, which are for products
    "4 bits": (Scheme(weights=INT4), INT4),
    "a zero point": (Scheme(weights=UINT4), INT8_NARROW),
}


@pytest.mark.parametrize(("asked", "weights"), ALONE.values(), ids=ALONE.keys())
def test_weights_that_are_always_stored_alone(asked: Scheme, weights: object) -> None:
    found = storage_scheme("lstm", asked, X86)
    assert (found.when, found.scales) == (When.NEVER, Scales.CHANNEL)
    assert found.weights is weights


def test_a_kernel_that_rounds_its_inputs_is_taken_where_that_is_asked_for() -> None:
    asked = SCHEMES["dynamic"]
    assert storage_scheme("lstm", asked, X86).when is When.DYNAMIC
    assert storage_scheme("gru", asked, X86).when is When.NEVER
    assert storage_scheme("lstm", asked, target("openvino")).when is When.NEVER


@pytest.mark.parametrize(
    ("name", "execution", "reason"),
    [
        ("dynamic", Execution.DYNAMIC, "its input is quantized with the range of each batch"),
        ("int8-weights", Execution.WEIGHTS, "int8 weights, input and result in float"),
        (
            "int4-weights",
            Execution.WEIGHTS,
            "4-bit weights in blocks of 32, input and result in float",
        ),
    ],
)
def test_decisions_say_what_is_stored(name: str, execution: Execution, reason: str) -> None:
    found = SCHEMES[name].first_match(X86.schemes("linear"))
    assert found is not None
    assert execution_and_reason(found, X86) == (execution, reason)


RULE = {"select": "*", "activations": "int16"}


class Layers(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())


@pytest.mark.parametrize(
    ("title", "target", "mode", "rules"),
    [
        ("8-bit weights and activations", "onnxruntime", "static", []),
        ("8-bit weights, activations quantized at run time", "onnxruntime", "dynamic", []),
        ("8-bit weights, float activations", "onnxruntime", "weight-only", []),
        ("4-bit weights, float activations", "onnxruntime", "weight-only-int4", []),
        ("8-bit weights, 16-bit activations", "tflite-micro", "static", [RULE]),
        (
            "8-bit weights, 8- and 16-bit activations",
            "tflite-micro",
            "static",
            [RULE | {"select": "2"}],
        ),
        (
            "4- and 8-bit weights, 8-bit activations",
            "onnxruntime",
            "static",
            [{"select": "2", "as": "int4-weights"}],
        ),
        (
            "8-bit weights, 8-bit activations, others quantized at run time",
            "onnxruntime",
            "static",
            [{"select": "2", "as": "dynamic"}],
        ),
    ],
)
def test_bits_are_those_of_the_plan(
    title: str, target: str, mode: str, rules: list[dict[str, Any]]
) -> None:
    captured = qtool.capture_model(Layers().eval(), torch.ones(4, 32))
    recipe = Recipe.of(rules, mode)
    assert plan_title(captured.plan(target, recipe=recipe)) == title


def test_a_plan_with_little_work_in_integers_says_how_much() -> None:
    captured = qtool.capture_model(Layers().eval(), torch.ones(4, 32))
    recipe = Recipe.of([{"select": "2", "as": "float"}], "static")
    half = captured.plan("onnxruntime", recipe=recipe)
    less = [
        replace(d, macs=3 * d.macs) if d.execution is Execution.FLOAT else d for d in half.nodes
    ]
    title = plan_title(replace(half, nodes=tuple(less)))
    assert title == "8-bit weights, 25 % of the compute in integers"
    loop = replace(less[0], execution=Execution.FLOAT, macs=0, macs_known=False)
    title = plan_title(replace(half, nodes=(*half.nodes, loop)))
    assert title == "8-bit weights and activations, next to 1 float operator of unknown work"


def test_every_mode_has_a_name() -> None:
    assert set(MODE_NAMES) == set(MODES)


class Encoder(nn.Module):
    """A transformer, with as many convolutions in front as are asked for."""

    def __init__(self, convolutions: int = 0, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(*(nn.Conv1d(16, 16, 3, padding=1) for _ in range(convolutions)))
        self.norm = nn.LayerNorm(16) if norm else nn.Identity()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.transpose(1, 2)).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        y: torch.Tensor = x + self.out(mixed)
        return y


def tokens(count: int = 16) -> torch.Tensor:
    return torch.randn(count, 6, 16, generator=torch.Generator().manual_seed(0))


def captured(**options: Any) -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Encoder(**options).eval(), tokens())


@pytest.mark.parametrize(
    ("target", "options", "mode"),
    [
        ("tflite", {}, "dynamic"),
        ("tflite", {"convolutions": 4}, "static"),
        ("tflite", {"norm": False}, "static"),
        *((name, {}, "static") for name in ("tflite-micro", "onnxruntime", "qnn")),
    ],
)
def test_a_network_has_the_mode_of_its_target(
    target: str, options: dict[str, Any], mode: str
) -> None:
    model = captured(**options)
    graph, _ = model.for_target(target)
    assert default_mode(graph.graph, targets.target(target)) == mode
    assert model.plan(target).recipe.mode == mode


def test_the_output_says_so() -> None:
    default = qtool.quantize(captured(), [tokens()], target="tflite", accuracy="fast")
    said = "mode dynamic: the default for transformers on tflite"
    assert any(note.startswith(said) for note in default.notes)


def test_a_choice_of_the_mode_is_kept() -> None:
    model = captured()
    for choice in ({"mode": "static"}, {"recipe": {"mode": "static"}}):
        chosen = qtool.quantize(model, [tokens()], target="tflite", accuracy="fast", **choice)
        assert chosen.plan.recipe.mode == "static"
        assert not any(note.startswith("mode ") for note in chosen.notes)


def test_calibrations_of_the_default_convert(tmp_path: Path) -> None:
    file = tmp_path / "m.calib"
    qtool.calibrate(captured(), [tokens()], target="tflite").save(file)
    for options in ({}, {"accuracy": "fast"}):
        assert qtool.convert(captured(), file, **options).plan.recipe.mode == "dynamic"
