"""Steps that train block by block: two sides of each sample, judged, and closer on new data."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.algorithms import acceptance
from qtool.algorithms.acceptance import runtime_module
from qtool.algorithms.conversion_state import LESS_ACCURATE, ConversionState
from qtool.algorithms.learned_scales import training
from qtool.algorithms.part_samples import PartBatch
from qtool.algorithms.pipeline import Scope, Step
from qtool.algorithms.registry import STEPS, register_step
from qtool.blockwise import block_conversion
from qtool.blockwise.block_pass import run_block
from qtool.blockwise.converted_blocks import changes_of
from qtool.core.data import Batch
from qtool.core.types import Change
from qtool.frontends.huggingface import meta_init
from tests.blockwise.test_by_blocks import filled, made, outputs, samples

EIGHT_BITS = {"mode": "weight-only", "accuracy": "fast"}
Side = tuple[ConversionState, list[Batch]]
"""A block that a step has changed, and samples of it."""


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_init, "MIN_META_ELEMENTS", 1000)
    monkeypatch.setattr(training, "MAX_STEPS", 60)


def scaled(factors: list[float], judges: int = 64, seen: list[Side] | None = None) -> Step:
    """A step from outside with candidates: all scales times a factor."""

    def propose(state: ConversionState) -> list[ConversionState]:
        assert state.parameters is not None
        params, candidates = state.parameters.params, []
        for factor in factors:
            new = {n: replace(p, scale=p.scale * factor) for n, p in params.items()}
            parameters = replace(state.parameters, params=new)
            change = Change("scaled", 1, "why")
            candidates.append(replace(state, parameters=parameters).with_change(change))
        if seen is not None:
            seen.append((candidates[0], list(state.batches(limit=40))))
        return candidates

    return Step("scaled", propose, samples=64, judges=judges, scope=Scope.PART)


def test_results_on_new_data_are_closer(folder: Path, tmp_path: Path) -> None:
    exact = filled(folder)(samples(1, seed=1)[0]).detach().numpy()
    errors = []
    for name, options in (("fast", {}), ("trained", {"recover": ["learned-scales"]})):
        path = tmp_path / f"{name}.onnx"
        result = made(folder, path, **{"accuracy": "fast", **options})
        errors.append(float(np.square(outputs(path) - exact).sum()))
    assert errors[1] < 0.7 * errors[0]
    assert [c.step for c in changes_of(result.blocks)] == ["learned-scales"]


def test_samples_have_two_sides(folder: Path, tmp_path: Path) -> None:
    """Both are the results of the block before: of its float graph, and as the step changed it."""
    blocks = list[Side]()
    register_step(scaled([1.25], 0, blocks), before=None)
    result = made(folder, tmp_path / "net.onnx", **EIGHT_BITS)
    assert len(blocks) == len(result.blocks) == 3
    for (state, inputs), (_, results) in pairwise(blocks):
        networks = runtime_module(state), state.captured.graph.module
        for batch, after in zip(inputs, results, strict=True):
            assert isinstance(after, PartBatch)
            with torch.no_grad():
                coded = networks[0](*batch.args)
                (exact,) = acceptance.target_outputs(networks[1], batch)
            assert torch.equal(after.args[0], *coded)
            assert torch.equal(after.exact.args[0], exact)
            assert not torch.equal(*coded, exact)


def test_a_step_from_outside_is_judged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block runs again only if a step was accepted."""
    calls = list[ConversionState]()

    def counted(*given: Any) -> Any:
        calls.extend(given[4:])
        return run_block(*given)

    monkeypatch.setattr(block_conversion, "run_block", counted)
    register_step(scaled([4.0, 3.0]), before=None)
    result = made(folder, tmp_path / "worse.onnx", **EIGHT_BITS)
    assert not changes_of(result.blocks)
    assert f"scaled: {LESS_ACCURATE} (in 3 blocks)" in str(result)
    assert not calls
    STEPS[-1] = scaled([4.0, 1.0])
    result = made(folder, tmp_path / "equal.onnx", **EIGHT_BITS)
    assert [c.step for c in changes_of(result.blocks)] == ["scaled"]
    assert len(calls) == 3


def test_samples_of_single_batches_are_trained_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of one sample are as good as larger ones, and parts of a batch run one by one."""
    sizes, real = list[int](), training.float_outputs

    def counted(module: Any, batch: Batch) -> Any:
        sizes.append(batch.size)
        return real(module, batch)

    monkeypatch.setattr(training, "float_outputs", counted)
    for name, value in (("MIN_STEPS", 2), ("MAX_STEPS", 2), ("BATCH", 16)):
        monkeypatch.setattr(training, name, value)
    single = [row for batch in samples(2) for row in batch.split(1)]
    made(folder, tmp_path / "one.onnx", data=single, accuracy="best")
    assert sizes == [16] * 6
    sizes.clear()
    monkeypatch.setattr(block_conversion, "TRAINING_BYTES", 1)  # those of the block decide
    made(folder, tmp_path / "other.onnx", data=single, accuracy="best")
    assert sum(sizes) == 6 * 16
    assert min(sizes) < 16
