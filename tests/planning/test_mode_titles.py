"""The title of a file says the bits that its plan has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.core.option_names import MODES
from qtool.planning.mode_titles import MODE_NAMES, plan_title
from qtool.planning.plan import Execution
from qtool.planning.recipe import Recipe

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


def test_every_mode_has_a_name() -> None:
    assert set(MODE_NAMES) == set(MODES)
