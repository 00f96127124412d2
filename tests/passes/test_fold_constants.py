"""Constants and affine operators are folded."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.passes import CANONICAL
from qtool.passes.fold_constants import fold_constants
from tests.named_cases import named_cases
from tests.passes.differential import Function, rewritten

IMAGE, ROWS = (2, 4, 6, 6), (2, 3, 5)
CONV, TRANSPOSED = nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(4, 6, 2, groups=2)
LINEAR, PLAIN = nn.Linear(5, 7), nn.Linear(5, 7, bias=False)


class Held(nn.Module):
    """A layer, and stored vectors a and b."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = layer
        self.a, self.b = (nn.Parameter(torch.randn(shape)) for _ in range(2))


@named_cases(
    "function",
    ("factor", lambda x, m: m.layer(x) * m.a),
    ("factor first", lambda x, m: m.a * m.layer(x)),
    ("summand", lambda x, m: m.layer(x) + m.a),
    ("subtracted", lambda x, m: m.layer(x) - m.a),
    ("both", lambda x, m: m.b + m.layer(x) * m.a),
)
@named_cases(
    "layer, shape, vector",
    ("linear", LINEAR, ROWS, (7,)),
    ("linear without a bias", PLAIN, ROWS, (1, 1, 7)),
    ("one number", LINEAR, ROWS, ()),
    ("convolution", CONV, IMAGE, (6, 1, 1)),
    ("transposed convolution", TRANSPOSED, IMAGE, (1, 6, 1, 1)),
)
def test_it_is_part_of_the_layer(
    function: Callable[..., torch.Tensor],
    layer: nn.Module,
    shape: tuple[int, ...],
    vector: tuple[int, ...],
) -> None:
    found = rewritten(Function(function, Held(layer, vector)), shape)
    assert found.counts["fold_affine"] > 0
    assert not {"mul", "add", "sub"} & set(found.ops())


@named_cases(
    "layer, shape, vector",
    ("along another axis", LINEAR, ROWS, (3, 1)),
    ("it widens the result", nn.Linear(5, 1), ROWS, (7,)),
    ("of more dimensions", nn.Linear(5, 1), ROWS, (1, 1, 1, 1)),
    ("of columns", nn.Conv2d(4, 4, 3), IMAGE, (4,)),
)
def test_vectors_that_do_not_fit(
    layer: nn.Module, shape: tuple[int, ...], vector: tuple[int, ...]
) -> None:
    model = Function(lambda x, m: m.layer(x) * m.a, Held(layer, vector))
    assert rewritten(model, shape).counts["fold_affine"] == 0


@named_cases(
    "function",
    ("the layer subtracted", lambda x, m: m.a - m.layer(x)),
    ("another tensor", lambda x, m: m.layer(x) * x),
    ("read elsewhere", lambda x, m: torch.stack([y := m.layer(x), y + m.a])),
)
def test_left_alone(function: Callable[..., torch.Tensor]) -> None:
    model = Function(function, Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 0


def test_a_layer_used_twice_keeps_its_other_use() -> None:
    model = Function(lambda x, m: m.layer(x) * m.a + m.layer(x + 1), Held(nn.Linear(5, 5), (5,)))
    assert rewritten(model, ROWS).counts["fold_affine"] == 1


class Packed(nn.Module):
    """One matrix that holds the weights of two layers, as nn.MultiheadAttention keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(7, 5)), nn.Parameter(torch.randn(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.weight.split([3, 4])
        a, b = self.bias.split([3, 4])
        return torch.cat([F.linear(x, first, a), F.linear(x, second, b)], 1)


class Normalized(nn.Module):
    """A convolution whose kernels have length one, and a norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = self.weight.square().sum((1, 2, 3), keepdim=True).sqrt()
        return self.norm(F.conv2d(x, self.weight / length))


class Masked(nn.Module):
    """A bias with a part of it set to zero: Swin V2."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.layer.bias.clone()
        bias[2:4].zero_()
        return F.linear(x, self.layer.weight, bias)


class Looked(nn.Module):
    """A table looked up at fixed places: the position bias of Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 2))
        self.register_buffer("index", torch.tensor([4, 0, 0, 1, 3, 3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[self.index].view(2, 3, 2).permute(2, 0, 1)


@named_cases(
    "model, shape, ops",
    ("packed", Packed, (2, 5), ["linear", "linear", "cat"]),
    ("normalized", Normalized, (2, 3, 6, 6), ["conv"]),
    ("a part set to zero", Masked, (2, 5), ["linear"]),
    ("looked up", Looked, (4, 2, 2, 3), ["add"]),
    (
        "weight norm",
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)),
        (2, 5),
        ["linear"],
    ),
)
def test_nothing_is_left_to_compute(
    model: Callable[[], nn.Module], shape: tuple[int, ...], ops: list[str]
) -> None:
    result = rewritten(model(), shape)
    assert result.ops() == ops
    weights = [n for n in result.graph.graph.nodes if n.op == "get_attr"]
    assert all(isinstance(G.tensor(result.graph.module, n), nn.Parameter) for n in weights)


def test_the_same_is_stored_once() -> None:
    layer = nn.Linear(5, 5)
    model = Function(lambda x, m: F.linear(F.linear(x, m.weight.t()), m.weight.t()), layer)
    result = rewritten(model, (2, 5))
    assert [n.op for n in result.graph.graph.nodes].count("get_attr") == 1
    assert result.counts["fold_constants"] == 2


def test_what_would_be_stored_many_times_larger_is_left() -> None:
    model = Function(lambda x, m: x + m.weight.expand(2048, 1024), nn.Linear(1024, 1))
    result = rewritten(model, (2, 2048, 1024), passes=[fold_constants])
    assert result.counts == {"fold_constants": 0}


@named_cases(
    "layer",
    ("ones", lambda x: F.conv2d(x, torch.ones(5, 1, 3, 3) / 9, groups=5)),
    ("full", lambda x: F.conv2d(x, torch.full((2, 5, 1, 1), 0.2))),
    ("eye", lambda x: F.linear(x, torch.eye(5))),
    ("product", lambda x: x @ torch.arange(10.0).view(5, 2)),
    ("einsum", lambda x: torch.einsum("ncwh,hk->nckw", x, torch.ones(5, 2))),
)
def test_weights_made_of_sizes_are_stored(layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    result = rewritten(Function(layer), (2, 5, 5, 5))
    assert set(result.ops()) <= {"conv", "linear", "matmul", "einsum", "reshape"}


def test_weights_are_stored_however_large() -> None:
    weight = nn.Conv2d(1, 1, 1)
    model = Function(lambda x, m: F.conv2d(x, m.weight.expand(3, 5, 300, 300)), weight)
    result = rewritten(model, (1, 5, 300, 300))
    assert result.ops() == ["conv"]


def test_masks_made_of_sizes_are_left() -> None:
    result = rewritten(Function(lambda x: x + torch.ones(5, 5).tril()), (2, 5, 5))
    assert result.counts["fold_constants"] == 0


def test_the_model_is_only_read() -> None:
    model = Masked()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rewritten(model, (2, 5), passes=CANONICAL)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
