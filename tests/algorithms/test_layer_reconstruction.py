"""Layers solved from samples: rows, samples of parts, values to compare."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import layer_reconstruction
from qtool.algorithms.comparable_pairs import worst_error
from qtool.algorithms.exclusive_layers import residual_input
from qtool.algorithms.layer_rows import (
    as_matrix,
    as_weight,
    input_mean,
    input_rows,
    input_sums,
    is_product,
    output_rows,
    row_weights,
)
from qtool.algorithms.part_samples import PartBatch, choose_samples, float_side, join_batches
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.output_evidence import Evidence
from tests.algorithms.weight_rounding.test_layer_step import captured, smooth

ROWS = torch.arange(6.0).reshape(3, 2)


def test_samples_of_both_sides() -> None:
    graph = qtool.capture_model(nn.Linear(2, 2).eval(), ROWS, {"input": {0: "n"}}).graph
    both = PartBatch((ROWS,), {}, exact=Batch((ROWS * 2,)))
    chosen = choose_samples(graph, both, torch.tensor([2, 0]))
    assert torch.equal(chosen.args[0][:, 0], torch.tensor([4.0, 0.0]))
    joined = join_batches(graph, [chosen, both])
    assert torch.equal(float_side(joined).args[0], 2 * joined.args[0])
    assert len(joined.args[0]) == 5
    halved = joined.map_tensors(lambda t: t / 2)
    assert torch.equal(float_side(halved).args[0], 2 * halved.args[0])
    plain = join_batches(graph, [Batch((ROWS,)), choose_samples(graph, Batch((ROWS,)), slice(1))])
    assert type(plain) is Batch
    assert float_side(plain) is plain


def detections(score: float) -> torch.Tensor:
    """Boxes and two classes at 200 positions of three samples, an object in each sample."""
    generator = torch.Generator().manual_seed(0)
    boxes = 300 * torch.rand(3, 4, 200, generator=generator)
    scores = torch.zeros(3, 2, 200)
    scores[:, 0, 5] = score
    return torch.cat([boxes, scores], 1)


def test_scores_of_a_detector() -> None:
    pairs = [([detections(0.8)[:2]], [detections(0.4)[:2]]), ([detections(0.8)[2:]],) * 2]
    assert worst_error(pairs, [Evidence()]) == pytest.approx(0.25 * 2 / 3)


def test_the_worst_of_several_outputs() -> None:
    real = [torch.ones(2, 3), torch.ones(2, 5, 7)]
    coded = [0.9 * torch.ones(2, 3), 0.5 * torch.ones(2, 5, 7)]
    assert worst_error([(real, coded)], 2 * [Evidence()]) == pytest.approx(0.25)
    assert worst_error([(real, real)], 2 * [Evidence()]) == 0


def test_an_offset_of_all_samples_is_no_signal() -> None:
    real = torch.tensor([[-1.0, 100.0], [1.0, 100.0]])
    coded = real + torch.tensor([[0.0, 0.1], [0.0, 0.1]])
    halves = [([real[:1]], [coded[:1]]), ([real[1:]], [coded[1:]])]
    for batches in (halves, [([real], [coded])]):
        assert worst_error(batches, [Evidence()]) == pytest.approx(0.02 / 4, rel=1e-4)
    alone = 0.01 / (1 + 100**2)  # of one sample it is not known
    assert worst_error(halves[:1], [Evidence()]) == pytest.approx(alone, rel=1e-4)


def test_batches_of_other_lengths() -> None:
    """Texts in batches of their own lengths are no detections."""
    texts = [torch.ones(2, 67, 10), torch.ones(2, 80, 10)]
    halves = [([each], [0.5 * each]) for each in texts]
    assert worst_error(halves, [Evidence()]) == pytest.approx(0.25)


LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=(2, 1)), (4, 7, 6)),
    "groups": (nn.Conv2d(4, 8, 3, groups=2), (4, 6, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 5, 5)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 4, 4, 3)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), (4, 5, 4)),
    "transposed groups": (
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (0, 1), (1, 2), groups=2, dilation=2),
        (4, 3, 4),
    ),
    "transposed 1d": (nn.ConvTranspose1d(3, 2, 2, padding=1), (3, 6)),
    "linear": (nn.Linear(5, 3), (5,)),
    "linear on tokens": (nn.Linear(5, 3), (2, 5)),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_product_is_what_the_layer_computes(name: str) -> None:
    layer, shape = LAYERS[name]
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    graph = qtool.capture_model(nn.Sequential(layer).eval(), x).graph
    node = next(n for n in G.calls(graph.graph) if is_product(n))
    weight = G.tensor(graph.module, node.args[1]).detach()
    matrix = as_matrix(node, weight)
    assert torch.equal(as_weight(node, matrix, weight.shape), weight)
    with torch.no_grad():
        expected = layer(x) - (0 if layer.bias is None else _along(layer.bias, layer(x), name))
    for most in (10**6, 2):
        found = input_rows(node, x, most) @ matrix.mT  # [groups, rows, out / groups]
        assert torch.allclose(found, output_rows(node, expected, most), atol=1e-5)
    assert input_rows(node, x, 2).shape[1] == 2
    if "linear" in name:
        gains = [
            torch.rand(part.shape[:-1], generator=torch.Generator().manual_seed(1))
            for part in x.split(2)
        ]
        counts = torch.cat([g.flatten() for g in gains]).double()
        rows = x.reshape(-1, x.shape[-1]).double()
        parts = [input_sums(node, *each) for each in zip(x.split(2), gains, strict=True)]
        assert torch.allclose(input_mean(node, parts)[0], counts @ rows / counts.sum())
        assert torch.equal(row_weights(gains[0], 10**6), gains[0].flatten())
    every = input_rows(node, x, 10**6).double().mean(1)
    parts = [input_sums(node, each) for each in x.split(2)]
    assert torch.allclose(input_mean(node, parts), every, atol=1e-6)


def _along(bias: torch.Tensor, y: torch.Tensor, name: str) -> torch.Tensor:
    return bias if "linear" in name else bias.reshape(-1, *[1] * (y.dim() - 2))


ADD, RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default


class Residual(nn.Module):
    """A sum of a tensor and of what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        return self.head(torch.relu(h + self.body(h)))


@pytest.mark.parametrize("step", ["bias-correction", "gptq"])
def test_a_layer_repairs_the_tensor_that_its_result_is_added_to(step: str) -> None:
    """The stem is right on the mean before its ReLU, and off behind it: the sum is to be right."""
    torch.manual_seed(0)
    recipe = [{"select": "stem", "weights": "int4"}]
    net = qtool.capture_model(Residual().eval(), smooth(1)[:8])
    calibration = qtool.calibrate(net, smooth(1).split(16), recipe=recipe, recover=[step])
    model = qtool.convert(net, calibration)
    (learned,) = calibration.kept_samples.batches(96)
    off: dict[Any, float] = {}
    runs = [Executor(net.graph), Executor(replace(model.graph, module=model.module))]
    values = [r.run(model.graph.call_of(learned), r.points) for r in runs]
    for node in G.calls(net.graph.graph):
        exact, coded = (v[r.indices[G.name_of(node)]] for r, v in zip(runs, values, strict=True))
        if node.target in (ADD, RELU) and node.target not in off:
            off[node.target] = float((exact - coded).mean((0, 2, 3)).abs().max())
    assert off[ADD] < 0.2 * off[RELU]


def test_as_many_samples_as_can_be_held_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = layer_reconstruction.run_by_levels

    def counted(executor: Executor, batches: list[Batch], *rest: Any) -> None:
        seen.append(sum(b.size for b in batches))
        real(executor, batches, *rest)

    monkeypatch.setattr(layer_reconstruction, "run_by_levels", counted)
    for elements in (1 << 27, 2 * 24 * 12 * 12 * 20, 1):  # 24 channels are the most at once
        monkeypatch.setattr("qtool.algorithms.layer_reconstruction.ELEMENTS", elements)
        model = qtool.quantize(captured(), smooth(1).split(16), recover=["bias-correction"])
        assert not any("kept no samples" in note for note in model.notes)
    assert 50 <= seen[0] <= 80
    assert 10 <= seen[1] <= 20
    assert 1 <= seen[2] <= 2, "as many as the graph takes at least"


class Block(nn.Module):
    """first: alone into a sum, through a reshape. second: read twice. third: an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        summed = self.first(x).reshape(-1, 2, 2) + x.reshape(-1, 2, 2)
        twice = self.second(summed.reshape(-1, 4))
        both = twice + twice.relu()
        third = self.third(both)
        return third, third + x


def test_the_other_part_of_a_sum_is_found_where_nothing_else_reads_the_result() -> None:
    captured = qtool.capture_model(Block().eval(), (torch.randn(3, 4),))
    run = Executor(captured.graph)
    other = residual_input(run, run.indices["first"])
    assert other is not None
    assert run.calls[other].reads == (run.indices["x"],)
    assert residual_input(run, run.indices["second"]) is None
    assert residual_input(run, run.indices["third"]) is None
