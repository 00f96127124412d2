"""A model that reads its batch by `len` takes any number of samples."""

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
