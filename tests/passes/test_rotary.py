"""Rotary embeddings that are written out become one operator, and nothing else does."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.export import write_float
from qtool.backends.onnx.operators import writers
from qtool.core import graph as G
from qtool.core.ops.attention import rotary_embedding
from qtool.frontends.captured_model import capture_model
from qtool.passes import FOR_TARGETS, run_passes

HEADS, WIDTH = 2, 8


class Rotary(nn.Module):
    """Heads [batch, heads, time, features] and what a Llama does with them.

    kind: what is done otherwise. together: all samples have the places of one.
    """

    def __init__(self, kind: str = "", together: bool = False) -> None:
        super().__init__()
        self.kind, self.together = kind, together
        self.register_buffer("steps", torch.logspace(0, -2, WIDTH // 2))

    def angles(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given = places[:1] if self.together else places
        single = given[:, :, None].float() * self.steps
        other = single + 1 if self.kind == "other halves" else single
        twice = torch.cat((single, other), -1)
        scale = 1.5 if self.kind == "scaled" else 1.0
        return twice.cos() * scale, twice.sin() * scale

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        cos, sin = (each.unsqueeze(1) for each in self.angles(places))
        x = x.view(*x.shape[:2], HEADS, WIDTH).transpose(1, 2)
        first, second = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
        if self.kind == "not minus":
            turned = torch.cat((second, first), -1)
        elif self.kind == "unequal parts":
            turned = torch.cat((-x[..., 3:], x[..., :3]), -1)
        elif self.kind == "interleaved":
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        else:
            turned = torch.cat((-second, first), -1)
        if self.kind == "other order":
            return sin * turned + cos * x
        other = x + 1 if self.kind == "of another" else x
        return other * cos + turned * sin


def given(batch: int = 3, time: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    places = torch.randint(0, 50, (batch, 1)) + torch.arange(time)
    return torch.randn(batch, time, HEADS * WIDTH), places


def captured(net: nn.Module) -> Any:
    return capture_model(net.eval(), given(), {"x": {0: "n", 1: "t"}, "places": {0: "n", 1: "t"}})


@pytest.mark.parametrize("together", [False, True], ids=["places of each", "of all"])
@pytest.mark.parametrize("kind", ["", "scaled", "other order"])
def test_it_is_found_and_computes_the_same_to_the_bit(kind: str, together: bool) -> None:
    found = captured(Rotary(kind, together)).graph
    before = found.module(*given(2, 7))
    assert run_passes(found.module, [FOR_TARGETS["rotary"]]) == {"rotary": 1}
    assert torch.equal(found.module(*given(2, 7)), before)
    (node,) = (n for n in found.module.graph.nodes if n.target is rotary_embedding)
    assert [G.shape(a)[-1] for a in node.args] == [WIDTH, WIDTH // 2, WIDTH // 2]


@pytest.mark.parametrize(
    "kind", ["other halves", "not minus", "unequal parts", "interleaved", "of another"]
)
def test_what_is_something_else_stays(kind: str) -> None:
    found = captured(Rotary(kind)).graph
    assert run_passes(found.module, [FOR_TARGETS["rotary"]]) == {"rotary": 0}


@pytest.mark.parametrize("together", [False, True], ids=["places of each", "of all"])
@pytest.mark.parametrize("own", [True, False], ids=["RotaryEmbedding", "plain"])
def test_both_forms_in_a_file_compute_it(
    own: bool, together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Rotary(together=together)
    found = captured(net).graph
    run_passes(found.module, [FOR_TARGETS["rotary"]])
    if not own:
        monkeypatch.setattr(
            "qtool.backends.onnx.export.onnx_file.writers", lambda _: writers(contrib=False)
        )
    path = write_float(found, tmp_path / "float.onnx")
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert ("RotaryEmbedding" in kinds) == own
    for batch, time in ((1, 1), (1, 6), (4, 1), (4, 6)):
        x, places = given(batch, time)
        session = ort.InferenceSession(path)
        (got,) = session.run(None, {"x": x.numpy(), "places": places.numpy()})
        np.testing.assert_allclose(got, net(x, places).numpy(), atol=1e-6)


def test_a_target_without_the_runtimes_own_operators_has_it_as_it_was() -> None:
    for name, target in qtool.planning.targets.TARGETS.items():
        assert ("rotary" in target.rewrites) <= target.file.contrib, name
