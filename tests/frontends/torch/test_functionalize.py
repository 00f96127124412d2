"""The short way to a functional graph gives the graph of the long one, or is not taken."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, ExportedProgram

from qtool.core import graph as G
from qtool.core.graph.fingerprint import fingerprint
from qtool.core.process_lock import silence_logging
from qtool.frontends.torch.exported_program import from_program
from qtool.frontends.torch.functionalize import make_functional


class Computes(nn.Module):
    """A few layers to begin with, then functions of their result, each with an output."""

    def __init__(self, *functions: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("kept", torch.ones(4, 8, 8))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(self, x) for function in self.functions]


def conv(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m.norm(m.conv(x))


def write_twice(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x)
    y.relu_()
    y.add_(m.kept)
    return y * y


def write_then_view(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x).relu_()
    return y.flatten(1) + 1


def write_under_a_view(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x)
    view = y.flatten(1)
    y.relu_()
    return view


def assert_a_number(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch._check(m.kept.sum().int().item() >= 0)
    return conv(m, x)


def write_to_a_view(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x)
    y[:, 0].mul_(2)
    return y


def write_to_the_input(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m.conv(x.mul_(2))


def read_before_the_write(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x)
    before = y + 1
    return before + y.relu_()


def without_gradients(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = conv(m, x)
    with torch.no_grad():
        a, b = y * 3, y.transpose(1, 2).reshape(x.shape[0], -1)
    return a.flatten(1) + b.to(torch.float32)


SHORT: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "arithmetic of sizes": lambda m, x: conv(m, x).reshape(4 * x.shape[0], -1) + x.shape[0] // 2,
    "batch norm": conv,
    "flatten": lambda m, x: conv(m, x).flatten(1),
    "flatten everything": lambda m, x: conv(m, x[:1]).flatten(),
    "flatten nothing": lambda m, x: conv(m, x).flatten(1, 1),
    "reshape": lambda m, x: conv(m, x).reshape(-1, 2, 16, 8),
    "dropout": lambda m, x: F.dropout(conv(m, x), training=False),
    "contiguous": lambda m, x: conv(m, x).transpose(1, 2).contiguous(),
    "contiguous already": lambda m, x: conv(m, x).contiguous(),
    "a cast": lambda m, x: conv(m, x).to(torch.float64),
    "a cast to what it is": lambda m, x: conv(m, x).to(torch.float32),
    "a cast and a place": lambda m, x: (conv(m, x) > 0).to("cpu", torch.float32),
    "dropout of a cast to what it is": lambda m, x: F.dropout(
        conv(m, x).to(torch.float32), training=False
    ),
    "batch norm of what is contiguous": lambda m, x: m.norm(m.conv(x).contiguous()),
    "reshape of what is contiguous": lambda m, x: conv(m, x).contiguous().reshape(-1, 2, 16, 8),
    "flatten of a cast to what it is": lambda m, x: conv(m, x).to(torch.float32).flatten(1),
    "a cast of what is contiguous": lambda m, x: conv(m, x).contiguous().to(torch.float64),
    "assertion of a number": assert_a_number,
    "write twice": write_twice,
    "write then view": write_then_view,
    "read before the write": read_before_the_write,
}
SHORT |= {
    "reshape that copies": lambda m, x: conv(m, x).transpose(1, 2).reshape(x.shape[0], 8, -1),
    "reshape that copies everything": lambda m, x: conv(m, x).transpose(1, 3).reshape(-1, 256),
    "reshape of a transposed view": lambda m, x: conv(m, x).transpose(0, 1).reshape(4, -1, 64),
    "reshape of an expanded tensor": lambda m, x: (
        conv(m, x)[:, :1].expand(-1, 5, -1, -1).reshape(x.shape[0], -1)
    ),
    "unflatten": lambda m, x: conv(m, x).unflatten(1, (2, -1)),
    "unflatten of a transposed tensor": lambda m, x: (
        conv(m, x).transpose(1, 2).unflatten(1, (2, 4))
    ),
    "chunk": lambda m, x: conv(m, x).chunk(2, 1)[1],
    "chunk of unequal parts": lambda m, x: torch.cat(conv(m, x).chunk(3, dim=1)[::-1], 1),
    "dropout in place": lambda m, x: F.dropout(conv(m, x), training=False, inplace=True) + 1,
    "a region without gradients": without_gradients,
    "reshape of every second": lambda m, x: conv(m, x)[:, :, ::2].reshape(x.shape[0] * 4, -1, 8),
}
SHORT |= {
    "flatten that copies": lambda m, x: conv(m, x).transpose(1, 2).flatten(1),
    "flatten of a transposed view": lambda m, x: conv(m, x).transpose(1, 3).flatten(2, 3),
    "flatten nothing of a transposed view": lambda m, x: conv(m, x).transpose(1, 2).flatten(1, 1),
    "detach": lambda m, x: conv(m, x).detach() * 2,
    "other names of transpose": lambda m, x: conv(m, x).mT + conv(m, x).swapaxes(-1, -2),
    "sizes of another tensor": lambda m, x: (
        conv(m, x)[:, :1].expand_as(conv(m, x)) + conv(m, x).view_as(conv(m, x))
    ),
    "reshape as another tensor": lambda m, x: conv(m, x).transpose(1, 2).reshape_as(conv(m, x)),
    "broadcast to the input": lambda m, x: conv(m, x)[:, :1].broadcast_to(x.shape[0], 4, 8, 8) + 1,
}
LONG = {
    "a tensor made of numbers": lambda m, x: (
        conv(m, x) * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1, 1)
    ),
    "reshape of computed sizes": lambda m, x: conv(m, x).transpose(1, 2).reshape(-1, 64),
    "flatten of a computed size": lambda m, x: conv(m, x).flatten(0, 1),
    "chunk of the batch": lambda m, x: conv(m, x).chunk(2, 0)[0],
    "write under a view": write_under_a_view,
    "write to a view": write_to_a_view,
    "write to the input": write_to_the_input,
}


PER_GRAPH = 8  # two reshapes that compute equal sizes share them on one way alone: keep them apart
GROUPS = [list(SHORT)[at : at + PER_GRAPH] for at in range(0, len(SHORT), PER_GRAPH)]


def program(*functions: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> ExportedProgram:
    torch.manual_seed(0)
    model, x = Computes(*functions).eval(), torch.randn(2, 3, 8, 8)
    with silence_logging():
        return torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},), strict=False)


def rows(graph: G.FloatGraph) -> list[str]:
    values = [(G.name_of(n), G.value(n)) for n in graph.graph.nodes]
    return [f"{name} {v.dtype} {v.shape}" for name, v in values if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("names", GROUPS, ids=", ".join)
def test_the_short_way_gives_the_graph_of_the_long_one(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = program(*(SHORT[name] for name in names))
    assert make_functional(exported.module(check_guards=False))
    short = from_program(exported)
    monkeypatch.setattr("qtool.frontends.torch.exported_program.make_functional", lambda _: False)
    long = from_program(exported)
    assert fingerprint(short.module) == fingerprint(long.module)
    assert rows(short) == rows(long)
    x = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(short.module(x), long.module(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", LONG)
def test_what_it_has_no_rule_for_is_left_to_torch(name: str) -> None:
    module = program(LONG[name]).module(check_guards=False)
    before = str(module.graph)
    assert not make_functional(module)
    assert str(module.graph) == before


def test_a_dynamic_size_is_not_pinned() -> None:
    exported = program(SHORT["contiguous"])
    module = exported.module(check_guards=False)
    assert make_functional(module)
    assert isinstance(G.shape(G.output_nodes(module.graph)[0])[0], torch.SymInt)
    assert module(torch.randn(5, 3, 8, 8))[0].shape == (5, 8, 4, 8)
