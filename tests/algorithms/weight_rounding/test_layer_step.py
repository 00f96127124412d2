"""Steps that solve layer by layer, and the samples that they read."""

import functools
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import layer_reconstruction
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.pipeline import Step, run_step
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples, slice_batch
from qtool.algorithms.weight_rounding.layer_solver import solve_layer
from qtool.core import graph as G
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.data.sample_roles import is_estimate
from qtool.core.graph.torch_ops import groups_of
from qtool.planning.targets.saturation import largest_pair_sums
from tests.algorithms.restored import check_restored

RECIPES = {
    "8 bits": None,
    "4 bits": [{"op": "conv", "weights": "int4"}, {"op": "linear", "weights": "int4"}],
}


ADD, RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default


class Net(nn.Module):
    """Convolutions of every kind that rows are made of, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.wide = nn.Conv2d(12, 12, 3, stride=2, padding=2, dilation=2, groups=3)
        self.deep = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.head = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.deep(torch.relu(self.wide(torch.relu(self.stem(x))))))
        return self.head(h.mean((2, 3)))


def smooth(seed: int, count: int = 96) -> torch.Tensor:
    """Images whose neighbours are alike, as in real ones: without that no rounding is better."""
    noise = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(noise, 5, 1, 2) * 3


@functools.cache
def captured() -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net().eval(), smooth(1)[:8])


@functools.cache
def made(bits: str, recover: tuple[str, ...]) -> qtool.QuantizedModel:
    data = list(smooth(1).split(16))
    return qtool.quantize(captured(), data, recipe=RECIPES[bits], recover=recover)


def sqnr(model: qtool.QuantizedModel) -> float:
    x = smooth(2)
    with torch.no_grad():
        exact, found = captured().graph.module(x), model(x)
    return float(10 * torch.log10(exact.square().sum() / (exact - found).square().sum()))


@pytest.mark.parametrize(
    ("bits", "step", "gain"), [("8 bits", "gptq", 0.3), ("4 bits", "gptq", 3.0)]
)
def test_results_on_new_data_are_nearer(bits: str, step: str, gain: float) -> None:
    assert sqnr(made(bits, (step,))) > sqnr(made(bits, ())) + gain


@pytest.mark.parametrize("bits", list(RECIPES))
def test_the_file_is_verified_and_gives_the_weights_back(bits: str, tmp_path: Path) -> None:
    check_restored(made(bits, ("gptq",)), captured(), smooth(3), tmp_path / "m.onnx")


def test_any_split_and_merge_gives_the_same_file(tmp_path: Path) -> None:
    def file(calibration: qtool.Calibration) -> bytes:
        qtool.convert(captured(), calibration, sample=smooth(1)[:4]).export(tmp_path / "m.onnx")
        return (tmp_path / "m.onnx").read_bytes()

    grid = (smooth(1) * 8).round() / 8  # sums of a few of these are exact in any order
    whole = qtool.calibrate(captured(), [grid], accuracy="balanced")
    parts = [qtool.calibrate(captured(), [p], accuracy="balanced") for p in grid.split(40)]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    assert {s.content_hash for s in merged.kept_samples} == {
        s.content_hash for s in whole.kept_samples
    }
    if all(  # torch's sums may differ in the last bit between sizes of batches
        (a[1:] == b[1:]) for a, b in zip(merged.ranges(), whole.ranges(), strict=True)
    ):
        assert file(merged) == file(whole)


def test_without_kept_samples_it_says_so_and_is_left_out() -> None:
    calibration = replace(
        qtool.calibrate(captured(), [smooth(1)]), kept_samples=CalibrationSamples(0)
    )
    model = qtool.convert(captured(), calibration, recover=["gptq"])
    assert any("kept no samples" in note for note in model.notes)
    assert "gptq" not in {r.name for r in model.plan.rewrites}


def test_a_few_samples_round_to_nearest() -> None:
    model = qtool.quantize(captured(), [smooth(1)[:2]], accuracy="balanced")
    assert [note for note in model.notes if "too few" in note] == [
        f"{step}: skipped, since the calibration kept too few samples for it (2)"
        for step in ("cross-layer-equalization", "gptq")
    ]


@pytest.mark.parametrize(("samples", "elements", "memory"), [(9, 1 << 27, False), (64, 300, True)])
def test_memory_is_named_where_it_is_the_cause(
    samples: int, elements: int, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_reconstruction, "ELEMENTS", elements)
    torch.manual_seed(0)
    layers = nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False)
    net = nn.Sequential(*layers).eval()
    notes = qtool.quantize(net, [torch.randn(samples, 8)]).notes
    assert "0.weight: rounded to nearest, since its samples are too few to hold some out" in notes
    assert any("memory limits it to" in note for note in notes) is memory


def largest_pair_of(model: qtool.QuantizedModel) -> int:
    """Over all weights of a model, in codes."""
    worst = 0
    for node in filter(is_product, G.calls(model.graph.graph)):
        weight = G.tensor(model.graph.module, node.args[1]).detach()
        codes = model.parameters[f"{G.name_of(node)}.weight"].quantize(weight)
        worst = max(worst, int(largest_pair_sums(codes, 0, groups_of(node)).max()))
    return worst


def test_rounded_weights_keep_the_limit_of_pairs(tmp_path: Path) -> None:
    largest, error = {}, {}
    for target in ("onnxruntime", "onnxruntime-x86-vnni"):
        for recover in ((), ("gptq",)):
            model = qtool.quantize(captured(), [smooth(1)], target=target, recover=recover)
            assert model.export(tmp_path / "model.onnx").passed
            largest[target, recover] = largest_pair_of(model)
            with torch.no_grad():
                off = captured().graph.module(smooth(2)) - model(smooth(2))
            error[target, recover] = float(off.square().sum())
    assert {largest["onnxruntime", r] for r in ((), ("gptq",))} <= set(range(129))
    assert largest["onnxruntime-x86-vnni", ("gptq",)] > 128  # the limit is what keeps it
    assert error["onnxruntime", ("gptq",)] < 0.9 * error["onnxruntime", ()]


def test_a_transposed_convolution_is_rounded_for_its_results() -> None:
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 3, 2, 1))
    net = nn.Sequential(*layers).eval()
    recipe = [{"select": "2", "weights": "int4"}]
    off = {}
    for recover in ((), ("gptq",)):
        model = qtool.quantize(net, smooth(1).split(16), recipe=recipe, recover=recover)
        with torch.no_grad():
            off[recover] = float((net(smooth(2)) - model(smooth(2))).square().sum())
    assert off["gptq",] < 0.7 * off[()]


@pytest.mark.parametrize("bits", RECIPES)
def test_weights_of_few_bits_have_more_samples_to_learn_from(bits: str) -> None:
    found = qtool.calibrate(captured(), [smooth(1, 200)], recipe=RECIPES[bits], recover=("gptq",))
    estimates = sum(is_estimate(s.content_hash) for s in found.kept_samples.stored())
    assert len(found.kept_samples) == min(192 if bits == "8 bits" else 1000, 200 - estimates)


def test_a_layer_is_solved_without_the_state_of_the_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state is read before the first layer, by few functions, and passed to none after."""
    readers: list[str] = []
    solving = False

    def receives_state(frame: FrameType, event: str, argument: object) -> None:
        nonlocal solving
        code = frame.f_code
        if event != "call" or solving or "/qtool/" not in code.co_filename:
            return
        solving = code is solve_layer.__code__
        values = [frame.f_locals.get(n) for n in code.co_varnames[: code.co_argcount]]
        if any(isinstance(v, ConversionState) for v in values):
            readers.append(code.co_qualname)

    def profiled(step: Step, state: ConversionState) -> ConversionState:
        if step.name != "gptq":
            return run_step(step, state)
        sys.setprofile(receives_state)
        try:
            return run_step(step, state)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr("qtool.algorithms.pipeline.run_step", profiled)
    qtool.quantize(captured(), smooth(1).split(16), recover=["gptq"])
    assert solving
    assert 3 <= len(dict.fromkeys(readers)) <= 8
    assert readers[:2] == ["run_step", "reconstruct_layers"]


def test_what_makes_outputs_worse_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.algorithms.pipeline.best_candidate", lambda *_: None)
    model = qtool.quantize(captured(), smooth(1).split(16), recover=["gptq"])
    assert any("gptq: skipped as less accurate" in note for note in model.notes)
    assert not model.changes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_keep_their_mean_without_a_bias(bias: bool, weighted: bool) -> None:
    layer = torch.nn.Linear(3, 2, bias=bias).eval()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)) + 5
    graph = qtool.capture_model(layer, x).graph
    (node,) = [n for n in G.calls(graph.graph) if is_product(n)]
    target = layer(x).detach()
    weights = torch.ones(8) if weighted else None
    rows = LayerSamples(node, [slice_batch(node, x, target, weights, 8)]).rows(holdout=False)
    assert rows is not None
    for centred, exact in zip(rows, (x, target), strict=True):
        expected = exact - exact.mean(0) if bias else exact
        assert torch.allclose(centred[0], expected, atol=1e-5)
