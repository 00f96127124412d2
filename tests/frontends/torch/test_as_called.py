"""What people write in a forward, captured: it computes what the model does when it is called."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from qtool.api.conversion import quantize
from qtool.core import graph as G
from qtool.core.errors import CaptureError
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import Applied
from tests.models.arms import Arms

aten = torch.ops.aten
torch.manual_seed(0)
SEQUENCE, IMAGE, IDS = torch.randn(2, 6, 8), torch.randn(2, 4, 8, 8), torch.randint(0, 12, (2, 6))


def _heads(x: torch.Tensor, rank: int) -> torch.Tensor:
    return {3: x, 4: x.unsqueeze(1), 5: x.reshape(2, 2, 3, 2, 4).transpose(2, 3)}[rank]


def _attend(rank: int) -> Callable[..., Any]:
    return lambda m, x: F.scaled_dot_product_attention(*[_heads(m.a(x), rank)] * 3, scale=0.5)


class Standardised(nn.Conv2d):
    """As in networks without batch norms: a weight of mean 0 and variance 1 in each call."""

    def __init__(self, by_norm: bool) -> None:
        super().__init__(4, 4, 3, padding=1)
        self.by_norm = by_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_norm:
            rows = self.weight.reshape(1, 4, -1)
            weight = F.batch_norm(rows, None, None, training=True).reshape_as(self.weight)
        else:
            variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True)
            weight = (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, padding=1)


NETWORKS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "clamp of integers": (
        Applied(lambda m, i: m.a(m.e(i.clamp(0, 9))), e=nn.Embedding(12, 8), a=nn.Linear(8, 4)),
        IDS,
    ),
    "clamp of integers on one side": (
        Applied(
            lambda m, i: (m.a(m.e(i)), i.clamp(max=5)), e=nn.Embedding(12, 8), a=nn.Linear(8, 4)
        ),
        IDS,
    ),
    "indices from the end": (
        Applied(lambda m, x: m.a(x)[:, [-1, -2]], a=nn.Linear(8, 4)),
        SEQUENCE,
    ),
    "attention of rank 3": (Applied(_attend(3), a=nn.Linear(8, 8)), SEQUENCE),
    "attention of rank 4": (Applied(_attend(4), a=nn.Linear(8, 8)), SEQUENCE),
    "attention of rank 5": (Applied(_attend(5), a=nn.Linear(8, 8)), SEQUENCE),
    "attention of rank 3 with a mask": (
        Applied(
            lambda m, x: F.scaled_dot_product_attention(
                m.a(x), m.a(x), m.a(x), attn_mask=x @ x.transpose(1, 2)
            ),
            a=nn.Linear(8, 8),
        ),
        SEQUENCE,
    ),
    "an integer mask": (
        Applied(
            lambda m, i: m.a(m.e(i)) + (1.0 - (i > 3).long())[..., None] * -100.0,
            e=nn.Embedding(12, 8),
            a=nn.Linear(8, 4),
        ),
        IDS,
    ),
    "a sum of a list": (
        Applied(
            lambda m, x: sum([m.a(x), m.b(x), m.a(m.b(x))]),
            a=nn.Conv2d(4, 4, 1),
            b=nn.Conv2d(4, 4, 1),
        ),
        IMAGE,
    ),
    "weights standardised by a norm": (Applied(lambda m, x: m.a(x), a=Standardised(True)), IMAGE),
    "weights standardised": (Applied(lambda m, x: m.a(x), a=Standardised(False)), IMAGE),
    "a low pad before a pool": (
        Applied(
            lambda m, x: F.max_pool2d(F.pad(m.a(x), (1, 1, 1, 1), value=-1e30), 3, 2),
            a=nn.Conv2d(4, 4, 1),
        ),
        IMAGE,
    ),
    "an infinite pad at one end": (
        Applied(
            lambda m, x: m.a(F.max_pool2d(F.pad(m.a(x), (0, 1, 0, 1), value=-torch.inf), 2, 1)),
            a=nn.Conv2d(4, 4, 1),
        ),
        IMAGE,
    ),
}


GROUPS = {"integers": IDS, "sequences": SEQUENCE, "attention": SEQUENCE, "images": IMAGE}


@pytest.mark.parametrize("group", GROUPS)
def test_they_convert_and_are_exact(group: str) -> None:
    x, attends = GROUPS[group], group == "attention"
    alike = {n: m for n, (m, data) in NETWORKS.items() if data is x}
    arms = {n.replace(" ", "_"): m for n, m in alike.items() if ("attention" in n) == attends}
    model = Arms(arms).eval()
    captured = capture_model(model, x)
    found, expected = map(pytree.tree_leaves, (captured.graph.module(x), model(x)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    verified = quantize(captured, [x], accuracy="fast").verify()
    assert verified.passed
    assert verified.coverage.share == 1 or attends


def test_nothing_is_left_of_a_sum_that_begins_with_zero() -> None:
    model, x = NETWORKS["a sum of a list"]
    added = [
        n
        for n in G.calls(capture_model(model.eval(), x).graph.graph)
        if n.target is aten.add.Tensor
    ]
    assert len(added) == 2


class TwoFaced(nn.Module):
    """Computes something else when it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (2.0 if torch.compiler.is_exporting() else 3.0)


def test_what_is_another_model_when_exported_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"output 'output' of the captured graph differs from the model's"
    ):
        capture_model(TwoFaced().eval(), SEQUENCE)


class Pair:
    """A container of the user's own, as a cache of keys and values is one."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b


pytree.register_pytree_node(
    Pair,
    lambda p: ([p.a, p.b], None),
    lambda children, _: Pair(*children),
    serialized_type_name="tests.Pair",
    flatten_with_keys_fn=lambda p: (
        [(pytree.GetAttrKey("a"), p.a), (pytree.GetAttrKey("b"), p.b)],
        None,
    ),
)


def test_containers_of_the_users_own_are_inputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, pair: Pair) -> torch.Tensor:
            return self.layer(pair.a) + self.layer(pair.b)

    captured = capture_model(Net().eval(), (Pair(SEQUENCE, SEQUENCE + 1),))
    assert [len(i.shape) for i in captured.graph.inputs] == [3, 3]


def batched_nms(scores: torch.Tensor) -> torch.Tensor:
    return scores if scores.sum() > 0 else -scores


class DynamicCache:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


REFUSED: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "a detector": (
        lambda: Applied(lambda m, x: batched_nms(m.a(x)), a=nn.Linear(8, 8)),
        SEQUENCE,
        "quantize its backbone and heads, and keep the selection (NMS) outside",
    ),
    "a cache": (
        lambda: Applied(lambda m, x: (m.a(x), DynamicCache(m.a(x))), a=nn.Linear(8, 8)),
        SEQUENCE,
        "call it with use_cache=False",
    ),
    "weights for each sample": (
        lambda: Applied(
            lambda m, x: F.conv2d(
                x.reshape(1, -1, 8, 8), x[:, :, :3, :3].unsqueeze(1).flatten(0, 1), groups=x.size(0)
            ),
            a=nn.Linear(8, 4),
        ),
        IMAGE,
        "one group with its own weights per sample",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refusal_says_what_to_do(name: str) -> None:
    make, x, expected = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        capture_model(make().eval(), x)
    assert expected in str(caught.value)
