"""The zeros of pruned weights stay zeros, by any step and in any mode; dense weights are free."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import fx, nn

import qtool
from qtool.algorithms.layer_rows import is_pruned
from qtool.algorithms.learned_scales import training
from qtool.core import graph as G
from qtool.frontends.huggingface import meta_init
from qtool.passes.conv_channels import block_diagonal
from qtool.planning.fake_quantize import quant_points

INT4 = [{"op": "linear", "weights": "int4"}, {"op": "conv", "weights": "int4"}]


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """The two largest of each four weights, as sparse tensor cores take them."""
    rows = weight.detach().reshape(-1, 4)
    return rows.scatter(1, rows.abs().argsort(1)[:, :2], 0).reshape(weight.shape)


class Net(nn.Module):
    """Two convolutions, one of groups, a transposed one and a linear layer of pruned weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.groups = nn.Conv2d(4, 16, 3), nn.Conv2d(16, 16, 3, groups=2)
        self.norm, self.turned = nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 8, 2, 2)
        self.linear, self.dense = nn.Linear(8, 32), nn.Linear(32, 6)
        for layer in (self.first, self.groups, self.turned, self.linear):
            layer.weight.data = two_of_four(layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.groups(torch.relu(self.first(x)))))
        return self.dense(torch.relu(self.linear(torch.relu(self.turned(x)).mean((2, 3)))))


def images() -> list[torch.Tensor]:
    """Of few directions, so that rounding errors can be compensated."""
    draw = torch.Generator().manual_seed(1)
    mixed = torch.randn(6, 4, 8, 8, generator=draw)
    return [torch.einsum("nk,kchw->nchw", torch.randn(32, 6, generator=draw), mixed)] * 4


def rounded(model: qtool.QuantizedModel) -> dict[str, torch.Tensor]:
    """The weights that the quantized network computes with, by layer."""
    points, graph = quant_points(model.module), model.module.graph
    sources = {p: n.args[0] for n in graph.nodes for p in points if _calls(model, n, points[p])}
    return {
        name.removesuffix(".weight"): points[name](G.tensor(model.module, source).detach())
        for name, source in sources.items()
        if name.endswith(".weight")
    }


def _calls(model: qtool.QuantizedModel, node: Any, point: nn.Module) -> bool:
    return node.op == "call_module" and model.module.get_submodule(str(node.target)) is point


HOW: dict[str, dict[str, Any]] = {
    "default": {},
    "dynamic": {"mode": "dynamic"},
    "weight-only int4": {"mode": "weight-only-int4"},
    "tensorrt": {"target": "tensorrt"},
    "tflite": {"target": "tflite"},
    "int4, all steps": {"recipe": INT4, "accuracy": "best"},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_pruned_weights_stay_zero(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_STEPS", 30)
    net = Net().eval()
    model = qtool.quantize(net, images(), **how)
    weights = rounded(model)
    assert weights
    for name, weight in weights.items():
        exact = net.get_submodule(name).weight
        if exact.shape != weight.shape:  # its groups are merged
            exact = block_diagonal(exact, 2, 2)
        assert not bool(weight[exact == 0].any()), name
        assert bool((exact == 0).any()) is (name != "dense")
    assert any("gptq" in c.step for c in model.changes)


def test_pruned_weights_stay_zero_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_init, "MIN_META_ELEMENTS", 100)
    net = Net().eval()
    save_file(
        {k: v.contiguous() for k, v in net.state_dict().items()}, tmp_path / "model.safetensors"
    )
    how: dict[str, Any] = {"model": Net().eval(), "block": 5000, "recover": ["gptq"], "memory": 0}
    result = qtool.quantize_by_blocks(tmp_path, images(), tmp_path / "net.onnx", **how)
    assert len(result.blocks) > 1
    assert any(name == "gptq" for block in result.blocks for name, *_ in block.changes)
    held = onnx.load(tmp_path / "net.onnx").graph.initializer
    codes = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in held}
    for name in ("first", "groups", "turned", "linear"):
        mine = [c for n, c in codes.items() if n.startswith(f"{name}.weight")]
        (own,) = (c for c in mine if c.dim() > 1 and c.dtype == torch.int8)
        exact = net.get_submodule(name).weight
        if exact.shape != own.shape:
            exact = exact.t() if exact.dim() == 2 else block_diagonal(exact, 2, 2)
        assert not bool(own[exact == 0].any()), name


def test_a_weight_counts_as_pruned_by_its_zeros() -> None:
    layer, weight = fx.Graph().placeholder("x"), torch.randn(10, 10)
    assert not is_pruned(weight, layer)
    weight[0, 1:] = 0
    assert not is_pruned(weight, layer)
    weight[0] = 0
    assert is_pruned(weight, layer)
    assert not is_pruned(torch.ones(0, 4), layer)


def test_zeros_between_merged_groups_are_no_pruning() -> None:
    layer, weight = fx.Graph().placeholder("x"), torch.randn(8, 4, 3, 3)
    layer.meta[G.MERGED_GROUPS] = 2
    assert not is_pruned(block_diagonal(weight, 2, 2), layer)
    assert is_pruned(block_diagonal(two_of_four(weight), 2, 2), layer)
