"""The stair: steps with probes and samples, their records in files, steps of a user's own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import Step, collect_probes, replay_changes
from qtool.algorithms.registry import STEPS, register_step
from qtool.backends.onnx.file_info import FileInfo
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PassError, PlanError, VerificationError
from qtool.core.types import Change, ObserverSpec
from qtool.evaluation.restored_model import restore
from qtool.planning.plan import Probe

PROBE = Probe("input.seen", "input", ObserverSpec("minmax"), axis=1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


def batch(seed: int = 1, count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def halved(factor: float, share: float = 0.5) -> Any:
    """An edit that keeps the function where `factor` is 2: one layer halved, the next doubled."""

    def edit(module: torch.fx.GraphModule) -> int:
        convs = [n for n in G.calls(module.graph) if "conv" in str(n.target)]
        for node, by, with_bias in ((convs[0], share, True), (convs[1], factor, False)):
            for constant in node.args[1 : 3 if with_bias else 2]:
                G.set_tensor(module, constant, G.tensor(module, constant).detach() * by)
        return 1

    return edit


def trivial(log: list[Any], factor: float = 2.0) -> Step:
    def apply(state: ConversionState, change: Change) -> ConversionState:
        return state.apply_edit(change, halved(factor))

    def run(state: ConversionState) -> ConversionState:
        log.append(state.calibration.statistics[PROBE.name].channels)
        log.append([t.size for t in state.batches(4)])
        return apply(state, Change("halve", 1, "a test", {"by": torch.tensor([0.5])}))

    return Step("halve", run, lambda graph, plan: [PROBE], samples=6, replay=apply)


@pytest.fixture
def registered() -> Iterator[list[Any]]:
    log: list[Any] = []
    register_step(trivial(log))
    yield log
    del STEPS[[s.name for s in STEPS].index("halve")]


def test_a_step_of_ones_own_sees_its_probe_and_its_samples_and_travels_in_the_file(
    registered: list[Any], tmp_path: Path
) -> None:
    captured = qtool.capture_model(net(), batch())
    model = qtool.quantize(captured, [batch()])
    assert registered == [3, [4]]  # of six samples two are kept aside
    assert [(r.name, r.count) for r in model.plan.rewrites if r.name == "halve"] == [("halve", 1)]
    model.export(tmp_path / "m.onnx")
    info = FileInfo.of(onnx.load(tmp_path / "m.onnx"))
    assert [(c.step, c.reason) for c in info.changes] == [("halve", "a test")]
    found = restore(tmp_path / "m.onnx", captured, model.sample)
    with torch.no_grad():
        assert torch.equal(found(batch(2)), model(batch(2)))
    assert len(registered) == 2  # replayed, not run


def test_the_calibration_file_holds_what_steps_need(registered: list[Any], tmp_path: Path) -> None:
    halves = [qtool.calibrate(net(), [part]) for part in batch().split(3)]
    halves[1].merge(halves[0]).save(tmp_path / "merged.calib")
    qtool.calibrate(net(), batch().split(3)).save(tmp_path / "whole.calib")
    merged, whole = (tmp_path / f"{n}.calib" for n in ("merged", "whole"))
    assert merged.read_bytes() == whole.read_bytes()
    qtool.convert(net(), merged)
    assert registered == [3, [4]]  # of six samples two are kept aside


def test_a_step_that_changes_the_function_is_refused() -> None:
    captured = qtool.capture_model(net(), batch())
    state = ConversionState.start(captured, captured.plan())
    with pytest.raises(PassError, match="differs"):
        state.apply_edit(Change("halve", 1, ""), halved(3.0))
    assert state.apply_edit(Change("halve", 1, ""), halved(2.0)).changes[0].step == "halve"


def test_what_float32_leaves_open_is_no_change() -> None:
    """Huge weights that cancel: roundings of them are thousandths of what is left."""
    model = net()
    with torch.no_grad():
        for weights in (model[0].weight, model[0].bias):
            weights[3] = weights[0]
        model[2].weight[:, 0], model[2].weight[:, 3] = 1e4, -1e4
    captured = qtool.capture_model(model, batch())
    state = ConversionState.start(captured, captured.plan())
    samples = [Batch((batch(2),), {})]
    edit = halved(2.999, 1 / 3)
    assert state.apply_edit(Change("third", 1, ""), edit, samples).changes[0].step == "third"
    with pytest.raises(PassError, match="differs"):
        state.apply_edit(Change("third", 1, ""), halved(3.3, 1 / 3), samples)


def test_two_steps_cannot_mean_different_things_by_one_probe() -> None:
    captured = qtool.capture_model(net(), batch())
    graph, plan = captured.for_target("onnxruntime")[0].graph, captured.plan()
    other = Step("other", lambda w: w, lambda g, p: [replace(PROBE, axis=None)])
    assert collect_probes([trivial([]), trivial([])], graph, plan) == (PROBE,)
    with pytest.raises(PlanError, match=r"another step has a probe 'input.seen'"):
        collect_probes([trivial([]), other], graph, plan)


def test_a_file_of_an_unknown_step_is_refused() -> None:
    captured = qtool.capture_model(net(), batch())
    state = ConversionState.start(captured, captured.plan())
    with pytest.raises(VerificationError, match=r"step 'halve' that is not registered.*smooth"):
        replay_changes(STEPS, state, [Change("halve", 1, "")])
