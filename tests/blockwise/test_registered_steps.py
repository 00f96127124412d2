"""A step from outside runs in memory and block by block, without further code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qtool
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import Scope, Step, layer_step
from qtool.algorithms.registry import register_step
from qtool.algorithms.weight_rounding.layer_solver import LayerProblem
from qtool.blockwise.converted_blocks import changes_of
from qtool.core.types import Change
from tests.blockwise.test_by_blocks import BLOCK, Residual, filled, outputs, samples

HOW: dict[str, Any] = {"mode": "weight-only", "accuracy": "fast"}


def coarser(state: ConversionState) -> ConversionState:
    """Scales of weights that are larger by a tenth."""
    assert state.parameters is not None
    params = {n: replace(p, scale=1.1 * p.scale) for n, p in state.parameters.params.items()}
    parameters = replace(state.parameters, params=params)
    return replace(state, parameters=parameters).with_change(Change("coarser", len(params), "why"))


def smaller(problem: LayerProblem) -> torch.Tensor | None:
    """Weights that are a little smaller, where that is better."""
    lower = problem.nearest * (1 - 1 / 127)
    lower = problem.params.round_trip(lower)
    return lower if problem.error(lower) < problem.error(problem.nearest) else None


def both(folder: Path, data: list[torch.Tensor], **how: Any) -> tuple[Any, Any]:
    """The results of a conversion in memory and block by block."""
    memory = qtool.quantize(filled(folder), data, **how)
    memory.export(folder.parent / "one.onnx", verify=False)
    blocks = qtool.quantize_by_blocks(
        folder, data, folder.parent / "blocks.onnx", model=Residual(), block=BLOCK, **how
    )
    return memory, blocks


def test_a_step_on_weights(folder: Path) -> None:
    register_step(Step("coarser", coarser, scope=Scope.WEIGHTS), before=None)
    memory, blocks = both(folder, samples(), **HOW)
    assert [c.step for c in memory.changes] == ["coarser"]
    (change,) = changes_of(blocks.blocks)
    assert (change.step, change.count) == ("coarser", memory.changes[0].count)
    one, other = (outputs(folder.parent / f"{name}.onnx") for name in ("one", "blocks"))
    assert np.array_equal(one, other)


def test_a_step_that_solves_layers(folder: Path) -> None:
    calls = list[str]()

    def solve(problem: LayerProblem) -> torch.Tensor | None:
        calls.append(problem.node.name)
        return smaller(problem)

    register_step(layer_step("mine", solve, "why", accuracy=""), before=None)
    both(folder, samples(), **HOW)
    assert not calls  # only by name
    memory, blocks = both(folder, samples(), mode="weight-only", recover=["mine"])
    assert len(calls) == 14  # seven layers, twice
    estimate = blocks.verification.fidelity.estimate
    assert estimate.kind == "estimate"
    assert {c.step for c in changes_of(blocks.blocks)} <= {"mine"}
    assert memory.fidelity.estimate.samples == estimate.samples
