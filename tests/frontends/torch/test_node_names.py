"""Names of nodes and of attributes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.frontends.captured_model import capture_model
from qtool.frontends.torch.node_names import with_valid_names
from tests.passes.differential import captured


class Heads(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in names})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(x) for head in self.heads.values())


@pytest.mark.parametrize(
    "names", [("class", "class_"), ("None",), ('a"); raise ValueError(("',), ("a\\",), ("a\nb",)]
)
def test_a_model_with_such_names_is_captured(names: tuple[str, ...]) -> None:
    model, x = Heads(*names).eval(), torch.randn(5, 4)
    graph = capture_model(model, x).graph
    assert torch.equal(graph.module(x), model(x))
    assert len(graph.module.state_dict()) == 2 * len(names)


def test_a_program_stays_as_it_is() -> None:
    model, x = Heads("class").eval(), torch.randn(5, 4)
    program = torch.export.export(model, (x,))
    before = list(program.state_dict)
    assert list(with_valid_names(program).state_dict) == [
        "heads.class_.weight",
        "heads.class_.bias",
    ]
    assert list(program.state_dict) == before
    plain = torch.export.export(Heads("box").eval(), (x,))
    assert with_valid_names(plain) is plain


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.conv2(self.relu(self.conv1(x))) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        block = Block()
        self.layer1 = nn.Sequential(block, Block(), block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = self.layer1(x)
        first, second = torch.split(x, 2, dim=1)
        return torch.sigmoid(torch.sigmoid(first + second))


def test_names_are_module_paths() -> None:
    graph = captured(Net(), (2, 3, 4, 4)).graph
    calls = [G.name_of(n) for n in G.calls(graph)]
    block = ("conv1", "relu", "conv2", "add", "relu_2")  # relu is a module called again
    assert calls == [
        *("stem", "relu"),  # a function is named after itself, where the module is that calls it
        *(f"layer1.{i}.{name}" for i in range(3) for name in block),
        *("split", "split.0", "split.1", "add", "sigmoid", "sigmoid_2"),
    ]


def test_weights_and_inputs() -> None:
    graph = captured(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (4, 3)).graph
    names = [G.name_of(n) for n in graph.nodes if n.op in ("get_attr", "placeholder")]
    assert names == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "input")
    ]


class Clash(nn.Module):
    """A module whose name is what a second `relu` would be called."""

    def __init__(self) -> None:
        super().__init__()
        self.relu_2 = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.relu_2(F.relu(x + 1)) - 1)


def test_names_are_unique() -> None:
    names = [G.name_of(n) for n in captured(Clash(), (2, 3)).graph.nodes]
    assert names == ["x", "add", "relu", "relu_2", "sub", "relu_3", "(output)"]


def test_an_operator_that_is_called_like_an_input() -> None:
    class Add(nn.Module):
        def forward(self, add: torch.Tensor) -> torch.Tensor:
            return add + 1

    assert [G.name_of(n) for n in captured(Add(), (2, 3)).graph.nodes][:2] == ["add", "add_2"]
