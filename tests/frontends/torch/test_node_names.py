"""Names that a person finds again in the exported file."""

import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from tests.passes.differential import captured


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
