"""Weights of tokens, and of experts."""

import pytest
import torch
from torch import fx, nn

import qtool
from qtool.algorithms.layer_reconstruction import token_weights
from qtool.algorithms.layer_rows import (
    MIN_TOKENS,
    input_rows,
    is_product,
    rare_experts,
    without_rare_experts,
)
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.torch_ops import expert_linear
from qtool.core.summary import group_notes
from tests.passes.test_experts import mixture, texts


class Tokens(nn.Module):
    """The mean of what a layer gives for tokens that are not masked, through one more layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.inner(x)) * mask[:, :, None]
        return self.head(h.sum(1) / mask.sum(1, keepdim=True))


def batch(count: int = 4, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x, mask = torch.randn(count, 5, 6, generator=draw), torch.ones(count, 5)
    mask[1, 2:] = 0
    return Batch((x, mask), {})


def test_a_masked_token_counts_nothing_and_layers_of_samples_are_left_out() -> None:
    torch.manual_seed(0)
    first = batch()
    captured = qtool.capture_model(Tokens().eval(), first.args)
    graph = captured.graph
    layers = [n for n in G.calls(graph.graph) if is_product(n)]
    found = token_weights(graph, [first, batch(3, 1)], layers)
    assert list(found) == ["inner"]  # head has a row for each sample
    gains = [g.reshape(-1, 5) for g in found["inner"].values()]
    assert [len(g) for g in gains] == [4, 3]
    for gain, mask in zip(gains, (first.args[1], batch(3, 1).args[1]), strict=True):
        assert torch.equal(gain > 0, mask > 0)
    three = [first, batch(4, 1), batch(4, 2)]  # those that are not asked for change no other
    every, some = (token_weights(graph, three, layers, asked)["inner"] for asked in (None, [0, 2]))
    assert list(some) == [0, 2]
    assert all(torch.equal(some[i], every[i]) for i in some)


def test_weights_grow_with_the_root_of_the_gradient() -> None:
    x, factor = torch.ones(1, 2, 4), torch.tensor([[1.0], [3.0]])

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.inner(x) * factor).sum(1)

    graph = qtool.capture_model(Tokens().eval(), x).graph
    layers = [n for n in G.calls(graph.graph) if is_product(n)]
    gains = token_weights(graph, [Batch((x,), {})], layers)["inner"][0].flatten()
    assert float(gains[1] / gains[0]) == pytest.approx(3**0.5, rel=1e-5)  # of float32 sums


def test_behind_a_norm_of_what_does_not_vary_rows_count_alike() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.0), nn.Linear(4, 2)).eval()
    nn.init.zeros_(module[0].weight)
    nn.init.zeros_(module[0].bias)
    x = torch.randn(4, 7, 4)
    graph = qtool.capture_model(module, x).graph
    layers = [n for n in G.calls(graph.graph) if is_product(n)]
    gains = token_weights(graph, [Batch((x,), {})], layers)["0"][0]
    assert torch.equal(gains, torch.ones_like(gains))


def test_without_a_derivative_nothing_is_said() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).eval()
    x = torch.randn(4, 7, 4)
    graph = qtool.capture_model(module, x).graph
    layers = [n for n in G.calls(graph.graph) if is_product(n)]
    assert set(token_weights(graph, [Batch((x,), {})], layers)) == {"0", "2"}
    (gelu,) = (n for n in G.calls(graph.graph) if n.target is torch.ops.aten.gelu.default)
    gelu.target = lambda value, **_: _refuse(value)
    graph.module.recompile()
    assert token_weights(graph, [Batch((x,), {})], layers) == {}


def _refuse(value: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("derivative is not implemented")


def test_rows_are_those_of_each_expert() -> None:
    graph = fx.Graph()
    tensors = (graph.placeholder(name) for name in ("x", "weight", "ids"))
    layer = graph.call_function(expert_linear, (*tensors, 4))
    x, ids = torch.arange(1.0, 6)[:, None], torch.tensor([2, 0, 2, -1, 3])
    rows = input_rows(layer, x, 100, ids)
    assert rows[..., 0].tolist() == [[2, 0], [0, 0], [1, 3], [5, 0]]


def test_rare_experts_are_named() -> None:
    x, y = torch.ones(3, MIN_TOKENS, 8), torch.ones(3, MIN_TOKENS, 2)
    x[1, 5:] = y[1, 5:] = 0
    (own, target), note = without_rare_experts("mlp.down", (x, y))
    assert [bool(t.any()) for t in own] == [True, False, True]
    assert torch.equal(target[0], y[0])
    assert not target[1].any()
    assert note.startswith("mlp.down.weight[1]: rounded to nearest")
    other = rare_experts("mlp.up", torch.tensor([MIN_TOKENS, 5, 0]))
    (joined,) = group_notes([note, other])  # each layer keeps its own experts
    assert joined.startswith("mlp.down.weight[1], mlp.up.weight[1,2]: rounded")
    assert without_rare_experts("mlp.down", (x[::2], y[::2]))[1] == ""


@pytest.mark.matrix
def test_experts_are_rounded_better_than_to_nearest() -> None:
    data, captured = texts(48), qtool.capture_model(mixture("Mixtral"), texts(1)[0])
    nearest, solved = (
        qtool.quantize(captured, data, mode="weight-only-int4", recover=steps)
        for steps in ([], ["gptq"])
    )
    held_out = texts(64)[48:]

    def error(model: qtool.QuantizedModel) -> float:
        with torch.no_grad():
            pairs = [(model(**b)["logits"], captured.graph.module(**b)["logits"]) for b in held_out]
        return sum(float((a - b).square().sum()) for a, b in pairs)

    assert error(solved) < 0.8 * error(nearest)


@pytest.mark.matrix
def test_a_rare_expert_is_named_in_the_notes() -> None:
    model = mixture("Mixtral", num_experts_per_tok=1)
    with torch.no_grad():
        model.model.layers[0].mlp.gate.weight[3] = 0  # chosen if it is the only one not below 0
    quantized = qtool.quantize(model, texts(16), mode="weight-only-int4", recover=["gptq"])
    notes = [n for n in quantized.notes if "reach these experts" in n]
    assert len(notes) == 2  # of both layers
    assert all("3]: rounded to nearest" in n for n in notes)
