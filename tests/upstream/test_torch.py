"""Defects of torch (docs/upstream.md): a failure means that one is mended."""

import warnings

import numpy as np
import onnxruntime as ort
import pytest
import torch

pytestmark = pytest.mark.matrix


def test_module_called_as_a_keyword_is_written_as_one() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.ModuleDict({"class": torch.nn.Linear(2, 2)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.heads["class"](x)

    exported = torch.export.export(Heads().eval(), (torch.ones(2, 2),))
    with pytest.raises(SyntaxError):
        exported.module()


def test_exporter_takes_logarithms_of_zero_and_inf() -> None:
    class Logarithms(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.nn.functional.logsigmoid(-x), torch.logaddexp(x, x)

    far = torch.tensor([[200.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        written = torch.onnx.export(
            Logarithms().eval(), (far,), dynamo=True, verbose=False
        ).model_proto
    session = ort.InferenceSession(written.SerializeToString())
    wrong = session.run(None, {session.get_inputs()[0].name: far.numpy()})
    assert [float(y[0, 0]) for y in wrong] == [-np.inf, np.inf]
    assert [round(float(y), 3) for y in Logarithms()(far)] == [-200.0, 200.693]


def test_size_that_is_not_followed_is_fixed_silently() -> None:
    class Half(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, int(x.shape[1] / 2) :]

    any_length = ({1: torch.export.Dim.DYNAMIC},)
    half = torch.export.export(Half().eval(), (torch.ones(2, 8),), dynamic_shapes=any_length)
    sizes = [node.args for node in half.graph.nodes if node.target is torch.ops.aten.slice.Tensor]
    assert any(4 in args for args in sizes)  # for any n


def test_exporter_divides_sizes_towards_zero() -> None:
    class Up(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : -(-x.shape[1] // 2)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        written = torch.onnx.export(
            Up().eval(),
            (torch.ones(2, 8),),
            dynamic_shapes=({1: torch.export.Dim.DYNAMIC},),
            dynamo=True,
            verbose=False,
        ).model_proto
    session = ort.InferenceSession(written.SerializeToString())
    assert session.run(None, {"x": np.ones((2, 7), np.float32)})[0].shape == (2, 3)
    assert Up()(torch.ones(2, 7)).shape == (2, 4)
