"""Names of layers, inputs and outputs that meet in one file: what the user sees keeps its name."""

from itertools import cycle
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.evaluation.restored_model import restore
from qtool.frontends.onnx.onnx_file import load_onnx


class Net(nn.Module):
    """Two layers under names of one's choice, and a head that makes something of them."""

    def __init__(self, names: tuple[str, str], head: Any, conv: bool) -> None:
        super().__init__()
        self.names, self.head = names, head
        make = (lambda i, o: nn.Conv2d(i, o, 3, padding=1)) if conv else nn.Linear
        self.add_module(names[0], make(4, 8))
        self.add_module(names[1], make(8, 4))

    def forward(self, x: torch.Tensor) -> Any:
        first, second = (getattr(self, name) for name in self.names)
        return self.head(first, second, x)


def chain(a: nn.Module, b: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return b(F.relu(a(x)))


HEADS = {
    "last": chain,
    "sigmoid behind": lambda a, b, x: chain(a, b, x).sigmoid(),
    "twice": lambda a, b, x: (chain(a, b, x), F.relu(a(x))),
    "a dict of layers": lambda a, b, x: {"output": chain(a, b, x), "hidden": a(x)},
    "a dict of what follows": lambda a, b, x: {
        "output": chain(a, b, x).tanh(),
        "hidden": F.relu(a(x)),
    },
    "numbers and texts": lambda a, b, x: {0: chain(a, b, x), "0": a(x)},
    "paths": lambda a, b, x: {"a.b": chain(a, b, x), "a": {"b": a(x)}},
    "no name": lambda a, b, x: {"": chain(a, b, x)},
    "as the input": lambda a, b, x: {"x": chain(a, b, x), "x_out": a(x)},
    "unicode": lambda a, b, x: {"出力": chain(a, b, x), "hidden": a(x)},
    "as points are called": lambda a, b, x: {"hidden.quantize": chain(a, b, x), "x.scale": a(x)},
    "itself": lambda a, b, x: (chain(a, b, x), x),
}
NAMES = {
    "output": ("hidden", "output"),
    "numbered": ("output_0", "x_out"),
    "unicode": ("层", "output"),
}
# Each head with a pair of names, and each pair of names with both kinds of layer.
CASES = [
    pytest.param(head, NAMES[title], i % 2 == 0, id=f"{head}-{title}")
    for i, (head, title) in enumerate(zip(HEADS, cycle(NAMES), strict=False))
]


@pytest.mark.parametrize(("head", "names", "conv"), CASES)
def test_layers_and_outputs_of_one_name(
    head: str, names: tuple[str, str], conv: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = Net(names, HEADS[head], conv).eval()
    x = torch.randn(4, 4, 6, 6) if conv else torch.randn(8, 4)
    captured = qtool.capture_model(net, x)
    quantized = qtool.quantize(captured, [x], accuracy="fast")
    file = tmp_path / "net.onnx"
    assert quantized.export(file).passed
    written = onnx.load(file)
    assert [o.name for o in written.graph.output] == list(captured.graph.outputs)
    assert [i.name for i in written.graph.input] == ["x"]
    planned = {d.node for d in quantized.plan.nodes if d.execution.value == "integer"}
    assert planned <= {n.name for n in written.graph.node}
    again = restore(file, captured, quantized.sample)  # every point is found by its name
    for mine, back in zip(
        again._simulation.run(again.sample),
        quantized._simulation.run(quantized.sample),
        strict=True,
    ):
        assert (mine == back).all()


def test_a_node_without_a_name_and_its_output(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(torch.randn(4, 3, 3, 3).numpy(), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "one",
        [value("x", 1, ["N", 3, 8, 8])],
        [value("y", 1, ["N", 4, 6, 6])],
        [weight],
    )
    file = tmp_path / "one.onnx"
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), file
    )
    quantized = qtool.quantize(load_onnx(file), [torch.randn(4, 3, 8, 8)], accuracy="fast")
    assert quantized.export(tmp_path / "one.int8.onnx").passed
    assert [o.name for o in quantized.to_onnx().graph.output] == ["y"]
