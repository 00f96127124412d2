"""Biases are corrected for rounded weights block by block, as in memory."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import nn

import qtool
from qtool.algorithms.weight_rounding.layer_samples import LayerMeans, layer_sums
from qtool.backends.onnx.file_info import FileInfo
from qtool.core import graph as G
from qtool.core.data.calibration_samples import content_hash
from qtool.core.data.sample_roles import Role, roles_of
from tests.blockwise.test_by_blocks import WIDTH, filled, large, made, samples

__all__ = ["large"]


def test_the_mean_results_are_those_of_the_float_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    x = torch.cat(samples())
    names = [content_hash((row,)) for row in x.split(1)]
    roles = roles_of(names, len(names))
    x = x[[roles[name] is Role.FIT for name in names]]
    with torch.no_grad():
        exact = net(x).numpy()
    means = []
    for recover in ([], ["gptq"]):
        path, data = tmp_path / "net.onnx", samples()
        rule = [{"select": "*", "weights": "int4"}]
        qtool.quantize_by_blocks(tmp_path, data, path, model=net, recipe=rule, recover=recover)
        session = ort.InferenceSession(path)
        (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        means.append(np.abs((result - exact).mean(0)).mean() / (result - exact).std())
    assert means[1] < 0.02
    assert means[0] > 0.05


def test_float_biases_are_in_the_record_of_the_file(folder: Path, tmp_path: Path) -> None:
    """As in memory, since no codes hold them."""
    blocks, one = tmp_path / "blocks.onnx", tmp_path / "one.onnx"
    how = {"mode": "weight-only-int4", "recover": ["gptq"]}
    made(folder, blocks, **how)
    qtool.quantize(filled(folder), samples(), **how).export(one, verify=False)
    found = [FileInfo.of(onnx.load(path)) for path in (blocks, one)]
    ((by_blocks,), (in_memory,)) = (info.changes for info in found if info is not None)
    assert sorted(by_blocks.arrays) == sorted(in_memory.arrays)
    assert len(by_blocks.arrays) == 4
    stored = [numpy_helper.to_array(i) for i in onnx.load(blocks).graph.initializer]
    before = [t.detach().numpy() for n, t in filled(folder).named_parameters() if "bias" in n]
    for bias in map(np.asarray, by_blocks.arrays.values()):
        assert any(a.shape == bias.shape and np.array_equal(a, bias) for a in stored)
        assert not any(a.shape == bias.shape and np.array_equal(a, bias) for a in before)


def test_means_are_of_all_batches_in_any_sizes() -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    x = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    graph = qtool.capture_model(layer.eval(), x).graph
    node = next(n for n in G.calls(graph.graph) if "conv" in str(n.target))
    means = LayerMeans(node)
    with torch.no_grad():
        for batch in x.split(4):
            means.add(*layer_sums(node, batch, layer(batch)))
        expected = layer(x).mean((0, 2, 3))
        product = layer.weight.flatten(1).double() @ means.mean_input()[0]
    assert torch.allclose(means.mean_target(), expected.double(), atol=1e-6)
    assert torch.allclose(product + layer.bias.double(), expected.double(), atol=1e-6)
