"""Small networks, one for each thing a file has to get right; and runs of their files."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnxruntime.session import optimised_graph

Inputs = tuple[torch.Tensor, ...]
Arrays = list[np.ndarray]


class Applied(nn.Module):
    """Layers by name and a function of (self, x): a network in a few lines."""

    def __init__(self, body: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs)
    norm.running_mean.normal_(0, 0.2)
    norm.running_var.uniform_(0.5, 2.0)
    return nn.Sequential(conv, norm)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv_bn(4, 8, 3), conv_bn(8, 8, 3)
        self.shortcut = conv_bn(4, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.conv1(x).relu())
        y = (y + self.shortcut(x)).relu()
        return self.head(y.mean((2, 3)))


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide, self.last = conv_bn(4, 4, 1), conv_bn(4, 6, 3), conv_bn(10, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.narrow(x).relu(), self.wide(x)], 1))


class MobileBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv_bn(4, 12, 1), conv_bn(12, 12, 3, 2, groups=12)
        self.project = conv_bn(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(F.relu6(self.depthwise(F.relu6(self.expand(x)))))


class PaddedShortcut(nn.Module):
    """The shortcut without weights of CIFAR ResNets: every second pixel, channels of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = conv_bn(4, 4, 3), conv_bn(4, 8, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        return (self.conv(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))).relu()


class Outputs(nn.Module):
    """An intermediate value, the last one twice, and the input as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.first(x).relu()
        z = self.second(y)
        return {"middle": y, "last": z, "again": z, "given": x}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 5), nn.Linear(3, 5)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.left(a.relu()) * self.right(b).sigmoid()


def _conv(kind: type[nn.Module]) -> nn.Module:
    layers = {"first": kind(4, 6, 3, stride=2, padding=1), "second": kind(6, 3, 1)}
    return Applied(lambda m, x: m.second(m.first(x).relu()), **layers)


def _between(body: Callable[[nn.Module, torch.Tensor], torch.Tensor], last: int = 6) -> nn.Module:
    """A convolution with ReLU, `body`, a convolution."""
    conv, end = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(last, 2, 1)
    return Applied(lambda m, x: m.last(body(m, m.conv(x).relu())), conv=conv, last=end)


def _asymmetric() -> nn.Module:
    conv, last = nn.Conv2d(4, 6, 3, stride=2), nn.Conv2d(6, 2, 1)
    return Applied(lambda m, x: m.last(m.conv(F.pad(x, (0, 1, 0, 1))).relu()), conv=conv, last=last)


def _product() -> nn.Module:
    left, right = nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 3, padding=1)
    return Applied(lambda m, x: m.left(x) * m.right(x), left=left, right=right)


def _transposed() -> nn.Module:
    layers = {"conv": nn.Conv2d(4, 6, 3, padding=1), "up": nn.ConvTranspose2d(6, 6, 2, stride=2)}
    return Applied(lambda m, x: m.last(m.up(m.conv(x))), **layers, last=nn.Conv2d(6, 2, 1))


class Attention(nn.Module):
    """Two heads over five steps, with a shortcut that reads what the layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        heads = (p.unflatten(-1, (2, 4)).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(*heads)
        return self.last(torch.tanh(x) + y.transpose(1, 2).flatten(2))


def shaped(*shapes: tuple[int, ...]) -> Callable[[int], Inputs]:
    return lambda batch: tuple(torch.randn(batch, *shape) for shape in shapes)


@dataclass(frozen=True)
class Network:
    """runs_as: every operator of the optimised graph that computes, and how often it stands there.

    macs: counted by hand, of one sample. integer: those of them in integer kernels, if not all.
    modules: names a person has to find in the file. tolerance: of outputs, in codes.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    runs_as: Mapping[str, int]
    macs: int
    modules: tuple[str, ...]
    integer: int | None = None
    outputs: tuple[str, ...] = ("output",)
    input_names: tuple[str, ...] = ("x",)
    tolerance: float = 1.0


IMAGE = shaped((4, 8, 8))
NETWORKS: dict[str, Network] = {
    "residual": Network(
        Residual,
        IMAGE,
        {"QLinearConv": 3, "QLinearAdd": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1},
        64 * (9 * 4 * 8 + 9 * 8 * 8 + 4 * 8) + 8 * 5,
        ("conv1.0", "conv2.0", "shortcut.0", "add", "head"),
    ),
    "concat": Network(
        Concat,
        IMAGE,
        {"QLinearConv": 3, "QLinearConcat": 1},
        64 * (4 * 4 + 9 * 4 * 6 + 10 * 4),
        ("narrow.0", "wide.0", "cat", "last.0"),
    ),
    "depthwise_relu6": Network(
        MobileBlock,
        IMAGE,
        {"QLinearConv": 3},
        64 * 4 * 12 + 16 * (9 * 12 + 12 * 4),
        ("expand.0", "depthwise.0", "project.0"),
    ),
    "padded_shortcut": Network(
        PaddedShortcut,
        IMAGE,
        {"QLinearConv": 2, "QLinearAdd": 1},
        64 * 9 * 4 * 4 + 16 * 9 * 4 * 8,
        ("stem.0", "conv.0", "add", "pad"),
    ),
    "asymmetric_pad": Network(
        _asymmetric, IMAGE, {"QLinearConv": 2}, 16 * (9 * 4 * 6 + 6 * 2), ("conv", "last")
    ),
    "conv1d": Network(
        lambda: _conv(nn.Conv1d),
        shaped((4, 16)),
        {"QLinearConv": 2},
        8 * (3 * 4 * 6 + 6 * 3),
        ("first", "second"),
    ),
    "conv3d": Network(
        lambda: _conv(nn.Conv3d),
        shaped((4, 4, 8, 8)),
        {"QLinearConv": 2},
        32 * (27 * 4 * 6 + 6 * 3),
        ("first", "second"),
    ),
    "max_pool": Network(
        lambda: _between(lambda m, x: F.max_pool2d(x, 3, 2, 1)),
        IMAGE,
        {"QLinearConv": 2, "NhwcMaxPool": 1},
        64 * 9 * 4 * 6 + 16 * 6 * 2,
        ("conv", "max_pool2d", "last"),
    ),
    "average_pool": Network(
        lambda: _between(lambda m, x: F.avg_pool2d(x, 3, 2, 1)),
        IMAGE,
        {"QLinearConv": 3},  # the pool is written as a depthwise convolution
        64 * 9 * 4 * 6 + 16 * (9 * 6 + 6 * 2),
        ("conv", "avg_pool2d", "last"),
    ),
    "pad_with_ones": Network(
        lambda: _between(lambda m, x: F.pad(x, (1, 0, 2, 1), value=0.5)),
        IMAGE,
        {"QLinearConv": 2},
        64 * 9 * 4 * 6 + 9 * 11 * 6 * 2,
        ("conv", "pad", "last"),
    ),
    "product": Network(
        _product,
        IMAGE,
        {"QLinearConv": 2, "QLinearMul": 1},
        64 * (4 * 6 + 9 * 4 * 6),
        ("left", "mul", "right"),
    ),
    "linear": Network(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8, False), nn.Linear(8, 3)),
        shaped((6,)),
        {"QGemm": 3},
        6 * 8 + 8 * 8 + 8 * 3,
        ("0", "2", "3"),
        input_names=("input",),
    ),
    "linear_3d": Network(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        shaped((5, 6)),
        {"QGemm": 2},
        5 * (6 * 8 + 8 * 3),
        ("0", "2"),
        input_names=("input",),
    ),
    "attention": Network(
        Attention,
        shaped((5, 6)),
        {**dict.fromkeys(("FusedMatMul", "Softmax", "MatMul", "Tanh", "Add"), 1), "QGemm": 5},
        5 * (6 * 8 + 3 * 8 * 8 + 8 * 3) + 2 * 2 * 5 * 5 * 4,
        ("first", "query", "scaled_dot_product_attention", "last"),
        integer=5 * (6 * 8 + 3 * 8 * 8 + 8 * 3),
    ),
    "outputs": Network(
        Outputs,
        IMAGE,
        {"QLinearConv": 2},
        64 * (9 * 4 * 4 + 4 * 4),
        ("first", "second"),
        outputs=("middle", "last", "again", "given"),
    ),
    "two_inputs": Network(
        TwoInputs,
        shaped((6,), (3,)),
        {"QGemm": 2, "Sigmoid": 1, "Mul": 1},
        6 * 5 + 3 * 5,
        ("left", "right"),
        input_names=("a", "b"),
    ),
    "conv_transpose": Network(
        _transposed,
        IMAGE,
        {"QLinearConv": 2, "ConvTranspose": 1, "Max": 1},  # between its result and codes
        64 * 9 * 4 * 6 + 64 * 4 * 6 * 6 + 256 * 6 * 2,
        ("conv", "up", "last"),
        integer=64 * 9 * 4 * 6 + 256 * 6 * 2,
    ),
}


@functools.cache
def network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name].make().eval()


@functools.cache
def quantized(name: str) -> QuantizedModel:
    """The network calibrated on 64 samples; shared by all tests: do not change it."""
    data = [samples(name, 16, seed) for seed in range(4)]
    return quantize(network(name), data, recover=[])


def samples(name: str, batch: int, seed: int = 0) -> Inputs:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return NETWORKS[name].inputs(batch)


@functools.cache
def exported(name: str) -> bytes:
    return quantized(name).to_onnx().SerializeToString()


@functools.cache
def float_file(name: str) -> bytes:
    """The float model as ONNX."""
    return float_onnx(quantized(name).graph).SerializeToString()


def model(name: str) -> onnx.ModelProto:
    """The exported model, a fresh copy."""
    return onnx.load_from_string(exported(name))


def run(file: bytes | onnx.ModelProto, inputs: Inputs, optimise: bool = True) -> Arrays:
    """Outputs in ONNX Runtime, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = file if isinstance(file, bytes) else file.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


def optimised(file: onnx.ModelProto) -> onnx.ModelProto:
    """The graph that ONNX Runtime executes for a model."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(file, path)
        return optimised_graph(path)


LAYOUT = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Squeeze", "Unsqueeze"),
        *("Flatten", "Slice", "Pad", "Identity"),
    )
)


def computing(graph: onnx.GraphProto) -> Counter[str]:
    """How often each operator stands in a graph, without those that move codes or make shapes."""
    shapes = {i.name for i in graph.initializer if i.data_type == onnx.TensorProto.INT64}
    counts: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type == "Shape" or (node.input and shapes.issuperset(node.input)):
            shapes.update(node.output)
        elif node.op_type not in LAYOUT:
            counts[node.op_type] += 1
    return counts


def codes_apart(expected: Arrays, actual: Arrays, steps: list[float | None]) -> float:
    """Largest difference, in steps of each output (1/255 of its range where it has none)."""
    worst = 0.0
    for a, b, step in zip(expected, actual, steps, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        size = step or float(np.ptp(a)) / 255
        worst = max(worst, float(np.nan_to_num(np.abs(a - b), nan=np.inf).max()) / size)
    return worst


def assert_same_codes(
    quantized: QuantizedModel, file: bytes | onnx.ModelProto, inputs: Inputs, tolerance: float = 1.0
) -> None:
    """The file in ONNX Runtime, as written and optimised, against fake quantization.

    The default tolerance of one code: a value on a rounding boundary falls to either side, since
    the integer kernels scale once where fake quantization rounds several float products.
    """
    with torch.no_grad():
        outputs = pytree.tree_leaves(quantized(*inputs))
    expected = [t.numpy() for t in outputs]
    for optimise in (False, True):
        apart = codes_apart(
            expected, run(file, inputs, optimise), list(quantized._simulation.output_scales())
        )
        assert apart <= tolerance + 1e-3, f"{apart} codes apart, optimised: {optimise}"
