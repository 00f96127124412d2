"""BatchNorm in every layer it can follow: the numbers stay, the norm goes, or it has to stay."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from qtool.core import graph as G
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_batch_norm import fold_batch_norm, fold_statistics, why_not_folded
from qtool.passes.fold_constants import remove_identity
from tests.named_cases import named_cases
from tests.passes.differential import Function, Rewritten, rewritten

PASSES = (remove_identity, canonicalize, fold_batch_norm)
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
IMAGE = (2, 4, 6, 6)


def folded(model: nn.Module, *shapes: tuple[int, ...], folds: int, left: int = 0) -> Rewritten:
    """Folds `folds` norms and leaves `left`, with the numbers of the model (see `rewritten`)."""
    result = rewritten(model, *shapes, passes=PASSES)
    assert result.counts["fold_batch_norm"] == folds
    assert sum("batch_norm" in op for op in result.ops()) == left
    return result


@named_cases(
    "groups, affine, bias",
    ("all there", 1, True, True),
    ("groups, no bias", 2, True, False),
    ("no bias, not affine", 1, False, False),
    ("groups, not affine", 2, False, True),
)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("layers", [CONVS, TRANSPOSED], ids=["conv", "transposed"])
def test_convolutions(
    layers: dict[int, type[nn.Module]], rank: int, groups: int, affine: bool, bias: bool
) -> None:
    layer = layers[rank](4, 6, 3, stride=2, groups=groups, bias=bias)
    result = folded(
        nn.Sequential(layer, NORMS[rank](6, affine=affine)), (2, 4, *[5] * rank), folds=1
    )
    assert len(result.ops()) == 1


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_linear_of_vectors(bias: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.BatchNorm1d(4))
    assert folded(model, (3, 5), folds=1).ops() == ["linear"]


class Shared(nn.Module):
    """Two convolutions over one weight, each with a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, bias=False), nn.Conv2d(4, 4, 3, bias=False)
        self.b.weight = self.a.weight
        self.norm_a, self.norm_b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm_b(self.b(self.norm_a(self.a(x))))


def _tied(x: torch.Tensor, conv: nn.Module, back: nn.Module, norm: nn.Module) -> torch.Tensor:
    """A convolution and a transposed one over the same weight and norm."""
    return norm(back(norm(conv(x))))


def _read_twice(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> torch.Tensor:
    y = conv(x)
    return norm(y) + y


def _returned(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> tuple[torch.Tensor, ...]:
    y = conv(x)
    return norm(y), y


def _tie() -> nn.Module:
    conv, back = nn.Conv2d(4, 4, 3, bias=False), nn.ConvTranspose2d(4, 4, 3, bias=False)
    back.weight = conv.weight
    return Function(_tied, conv, back, nn.BatchNorm2d(4))


def _dilated() -> nn.Module:
    return nn.ConvTranspose2d(4, 6, 3, padding=1, output_padding=1, stride=2, groups=2, dilation=2)


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


def norm() -> nn.BatchNorm2d:
    return nn.BatchNorm2d(4)


@named_cases(
    "model, folds, why",
    ("one weight, two norms", Shared, 2, ""),
    ("one weight, forwards and transposed", _tie, 2, ""),
    (
        "conv called twice, two norms",
        lambda: Function(lambda x, c, n, m: n(c(x)) + m(c(x)), conv(), norm(), norm()),
        2,
        "",
    ),
    (
        "conv and norm called twice",
        lambda: Function(lambda x, c, n: n(c(n(c(x)))), conv(), norm()),
        2,
        "",
    ),
    (
        "one norm behind two convs",
        lambda: Function(lambda x, c, d, n: n(c(x)) + n(d(x)), conv(), conv(), norm()),
        2,
        "",
    ),
    ("a norm behind a norm", lambda: nn.Sequential(conv(), norm(), norm()), 2, ""),
    (
        "dropout between",
        lambda: nn.Sequential(conv(), nn.Dropout(0.5), nn.Identity(), norm()),
        1,
        "",
    ),
    ("another eps", lambda: nn.Sequential(conv(), nn.BatchNorm2d(4, eps=0.1)), 1, ""),
    ("transposed with every option", lambda: nn.Sequential(_dilated(), nn.BatchNorm2d(6)), 1, ""),
    (
        "conv read by another node",
        lambda: Function(_read_twice, conv(), norm()),
        0,
        " has another reader",
    ),
    ("conv is an output", lambda: Function(_returned, conv(), norm()), 0, " has another reader"),
    (
        "a relu between",
        lambda: nn.Sequential(conv(), nn.ReLU(), norm()),
        0,
        "no convolution or linear layer is in front",
    ),
    (
        "norm before conv",
        lambda: nn.Sequential(norm(), conv()),
        0,
        "no convolution or linear layer is in front",
    ),
    (
        "a weight that is computed",
        lambda: Function(
            lambda x, n: n(torch.conv2d(x, x[:1, :, :3, :3].repeat(4, 1, 1, 1))), norm()
        ),
        0,
        "are computed",
    ),
)
def test_patterns(model: Callable[[], nn.Module], folds: int, why: str) -> None:
    """And the plan says why a norm stays."""
    graph = folded(model(), IMAGE, folds=folds, left=bool(why)).graph.graph
    reasons = [why_not_folded(n) for n in G.calls(graph) if "batch_norm" in str(n.target)]
    assert all(reason.endswith(why) for reason in reasons), reasons


def test_linear_of_sequences_keeps_its_norm() -> None:
    """BatchNorm1d normalizes dimension 1 of [batch, time, features], not what linear computes."""
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
    folded(model, (3, 7, 5), folds=0, left=1)


def test_a_norm_without_running_statistics_stays() -> None:
    """It normalizes by the batch at hand, so it is compared on that batch alone."""
    model = nn.Sequential(conv(), nn.BatchNorm2d(4, track_running_stats=False))
    folded(model, IMAGE, folds=0, left=1)


def test_equal_results_share_their_tensors() -> None:
    model = Function(lambda x, c, n: n(c(n(c(x)))), conv(), norm())
    graph = folded(model, IMAGE, folds=2).graph
    assert len(list(graph.module.parameters())) == 2


def test_names_and_user_model_are_untouched() -> None:
    model = nn.Sequential(conv(), norm())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = folded(model, IMAGE, folds=1)
    assert [G.name_of(n) for n in result.graph.graph.nodes] == [
        *("0.weight", "0.bias", "input", "0", "(output)")
    ]
    after = model.state_dict()
    settled = {k for k in before if k.startswith("1.")}  # drawn anew by the helper
    assert all(torch.equal(before[k], after[k]) for k in before.keys() - settled)


def test_fold_by_hand() -> None:
    """gain = 2 / sqrt(3 + 1) = 1; 4 / sqrt(15 + 1) = 1 on channel 1, with other numbers around."""
    weight, bias = fold_statistics(
        weight=torch.tensor([[1.0, 2], [3, 4]]),
        bias=torch.tensor([10.0, 20]),
        gamma=torch.tensor([4.0, 4]),
        beta=torch.tensor([1.0, 2]),
        mean=torch.tensor([5.0, 6]),
        variance=torch.tensor([3.0, 15]),
        eps=1,
    )
    assert weight.tolist() == [[2, 4], [3, 4]]
    assert bias.tolist() == [2 * (10 - 5) + 1, 1 * (20 - 6) + 2]
