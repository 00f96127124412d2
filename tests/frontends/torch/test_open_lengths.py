"""A model that reads sizes by `len` or casts them by `torch_int` takes any of them."""

import torch
from torch import nn

import qtool


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: len(self.layers)]:
            x = layer(x.reshape(len(x), -1, 6)).reshape(len(x), -1)
        return x


def test_a_batch_read_by_len_stays_open() -> None:
    model = Rows().eval()
    graph = qtool.capture_model(model, torch.randn(4, 2, 6)).graph
    assert graph.inputs[0].shape == ("batch", 2, 6)
    x = torch.randn(7, 2, 6)
    with torch.no_grad():
        torch.testing.assert_close(graph.module(x), model(x))
    assert "len" not in globals()


def torch_int(size: int) -> int:
    """As modules of transformers import it."""
    return int(size)


class Positions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(torch_int(x.shape[1]), dtype=x.dtype)[:, None]


def test_a_size_cast_by_torch_int_stays_open() -> None:
    model, sizes = Positions().eval(), {"x": {0: "batch", 1: "length"}}
    graph = qtool.capture_model(model, torch.randn(4, 3, 6), sizes).graph
    assert graph.inputs[0].shape == ("batch", "length", 6)
    x = torch.randn(7, 9, 6)
    torch.testing.assert_close(graph.module(x), model(x))
    assert torch_int(2.0) == 2
