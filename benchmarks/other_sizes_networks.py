"""Sixty small networks with dynamic sizes, for other_sizes.py: 37 in torch, 23 as ONNX files.

Each is a row: its body, the shape of a sample, and the names of the dynamic dimensions behind the
batch. Files are written by torch.onnx's older exporter, which most files in use come from, or node
by node where only other tools write such a form (auto_pad).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE, HW = (3, 32, 48), {2: "height", 3: "width"}
SEQUENCE, TIME = (16, 8), {1: "time"}
SIGNAL, LENGTH = (3, 64), {2: "length"}
LINE, WIDTH = (1, 16, 64), {3: "width"}
Body = Callable[["Parts", Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """A network with dynamic sizes.

    Attributes:
        name: of the row.
        shape: of one sample.
        dynamic: dimension behind the batch -> name.
        body: of the torch module; None for a file that `make` writes.
        as_file: the module is written as an ONNX file, which is quantized.
        make: returns the file.
        batch: whether the batch is dynamic, too.
    """

    name: str
    shape: tuple[int, ...]
    dynamic: Mapping[int, str]
    body: Body | None = None
    as_file: bool = False
    make: Callable[[], onnx.ModelProto] | None = None
    batch: bool = True

    def module(self) -> nn.Module:
        """Return the torch module, with seeded weights."""
        assert self.body is not None
        torch.manual_seed(0)
        return Parts(self.body).eval()

    def file(self) -> onnx.ModelProto:
        """Return the ONNX file."""
        if self.make is not None:
            return self.make()
        stream = io.BytesIO()
        axes = dict(self.dynamic) | ({0: "n"} if self.batch else {})
        example = torch.randn(2 if self.batch else 1, *self.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the older exporter warns of itself
            torch.onnx.export(
                self.module(),
                (example,),
                stream,
                dynamo=False,
                opset_version=17,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": axes},
            )
        return onnx.load_model_from_string(stream.getvalue())


class Parts(nn.Module):
    """The layers that bodies use."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.stem, self.down = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.head, self.up = nn.Conv2d(8, 4, 1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.line, self.tall = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, (8, 1))
        self.conv1, self.head1 = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 4, 1)
        self.linear, self.square = nn.Linear(8, 5), nn.Linear(8, 8)
        self.four, self.nine, self.wide = nn.Linear(32, 5), nn.Linear(72, 5), nn.Linear(32, 8)
        self.lstm, self.gru = nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.both = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.reader = nn.LSTM(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.position = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.table = nn.Parameter(torch.randn(1, 128, 8))
        self.group, self.norm = nn.GroupNorm(2, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features at a half and at a quarter of the image's size."""
        half = self.stem(x).relu()
        return half, self.down(half).relu()

    def tokens(self, x: Tensor) -> Tensor:
        return self.features(x)[1].flatten(2).transpose(1, 2)


def _image(body: Callable[[Parts, Tensor], Tensor]) -> Body:
    """A body on the features at a quarter of the size."""
    return lambda m, x: body(m, m.features(x)[1])


def _fpn(m: Parts, x: Tensor) -> Tensor:
    half, quarter = m.features(x)
    return m.head(F.interpolate(quarter, size=half.shape[2:], mode="nearest") + half)


def _unet(m: Parts, x: Tensor) -> Tensor:
    half, quarter = m.features(x)
    grown = F.interpolate(quarter, size=half.shape[2:], mode="bilinear", align_corners=False)
    return m.head((grown + half).relu())


def _crop(m: Parts, x: Tensor) -> Tensor:
    half, quarter = m.features(x)
    return m.head(m.up(quarter)[:, :, : half.shape[2], : half.shape[3]] + half)


def _window(m: Parts, d: Tensor) -> Tensor:
    b, c, h, w = d.shape
    cells = d.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1)
    return m.linear(cells.reshape(-1, 4, c))


def _back(m: Parts, d: Tensor) -> Tensor:
    b, _, h, w = d.shape
    return m.linear(d.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b, 5, h, w)


def _text_line(m: Parts, x: Tensor) -> Tensor:
    y = m.tall(m.line(x).relu()).relu()
    b, c, h, w = y.size()
    steps = m.reader(y.reshape(b, c * h, w).permute(2, 0, 1))[0]
    t, b, c = steps.size()
    return m.linear(steps.reshape(t * b, c)).view(t, b, -1)


def _pyramid(m: Parts, d: Tensor) -> Tensor:
    pooled = m.head(F.adaptive_avg_pool2d(d, 2))
    return m.head(d) + F.interpolate(pooled, size=d.shape[2:], mode="bilinear", align_corners=False)


def _samepad(m: Parts, d: Tensor) -> Tensor:
    h, w = d.shape[2:]
    return m.head(F.pad(d, (0, (-w) % 4, 0, (-h) % 4)))


def _coordinates(m: Parts, d: Tensor) -> Tensor:
    b, _, h, w = d.shape
    rows = torch.arange(h, device=d.device).float()[None, None, :, None].expand(b, 1, h, w) / h
    return m.head(torch.cat((d[:, :7], rows), 1))


def _heads(m: Parts, x: Tensor) -> Tensor:
    """Attention with the sizes of its reshapes read from the input."""
    b, t, c = x.shape
    q = m.square(x).reshape(b, t, 2, c // 2).transpose(1, 2)
    scores = (q @ q.transpose(2, 3) / 2).softmax(3)
    return m.linear((scores @ q).transpose(1, 2).reshape(b, t, c))


def _normed(m: Parts, d: Tensor) -> Tensor:
    mean = d.mean((2, 3), keepdim=True)
    return m.head((d - mean) / (d.var((2, 3), keepdim=True) + 0.1).sqrt())


def _resized_position(m: Parts, d: Tensor) -> Tensor:
    return m.head(d + F.interpolate(m.position, size=d.shape[2:], mode="bicubic"))


_IMAGES: Mapping[str, Body] = {
    "adaptive-2x2": _image(lambda m, d: m.head(F.adaptive_avg_pool2d(d, (2, 2)))),
    "adaptive-vgg": _image(lambda m, d: m.four(F.adaptive_avg_pool2d(d, (2, 2)).flatten(1))),
    "adaptive-3x5": _image(lambda m, d: m.head(F.adaptive_avg_pool2d(d, (3, 5)))),
    "adaptive-max": _image(lambda m, d: m.head(F.adaptive_max_pool2d(d, (2, 2)))),
    "adaptive-row": _image(lambda m, d: m.head(F.adaptive_avg_pool2d(d, (1, None)))),
    "pyramid": _image(_pyramid),
    "global": _image(lambda m, d: m.linear(d.mean((2, 3)))),
    "fpn": _fpn,
    "unet": _unet,
    "crop": _crop,
    "window": _image(_window),
    "back": _image(_back),
    "samepad": _image(_samepad),
    "reflect": _image(lambda m, d: m.head(F.pad(d, (1, 1, 1, 1), mode="reflect"))),
    "coordinates": _image(_coordinates),
    "tokens": lambda m, x: m.linear(m.tokens(x)),
    "position": _image(_resized_position),
    "ceil-pool": _image(lambda m, d: m.head(F.avg_pool2d(d, 3, 2, ceil_mode=True))),
    "scale-1.5": _image(lambda m, d: m.head(F.interpolate(d, scale_factor=1.5, mode="bilinear"))),
    "unfold": _image(lambda m, d: m.nine(F.unfold(d, 3, padding=1).transpose(1, 2))),
    "group-norm": _image(lambda m, d: m.head(m.group(d))),
    "variance": _image(_normed),
    "shuffle": _image(lambda m, d: F.pixel_shuffle(m.head(d), 2)),
    "half": _image(lambda m, d: m.head(d[:, :, : d.shape[2] // 2])),
    "attention": lambda m, x: m.linear(m.attention(m.tokens(x), *[m.tokens(x)] * 2)[0]),
}
_SEQUENCES: Mapping[str, Body] = {
    "lstm": lambda m, x: m.linear(m.lstm(x)[0]),
    "bilstm": lambda m, x: m.four(m.both(x)[0]),
    "gru": lambda m, x: m.linear(m.gru(x)[0]),
    "last": lambda m, x: m.linear(m.lstm(m.square(x).relu())[0][:, -1]),
    "heads": _heads,
    "encoder": lambda m, x: m.linear(m.encoder(x)),
    "learned": lambda m, x: m.linear(m.norm(x + m.table[:, : x.shape[1]])),
    "causal": lambda m, x: m.linear(
        F.scaled_dot_product_attention(m.square(x), x, x, is_causal=True)
    ),
}
_SIGNALS: Mapping[str, Body] = {
    "pool1d": lambda m, x: m.four(F.adaptive_avg_pool1d(m.conv1(x).relu(), 4).flatten(1)),
    "max1d": lambda m, x: m.head1(F.adaptive_max_pool1d(m.conv1(x).relu(), 4)),
    "strided": lambda m, x: m.head1(m.conv1(x).relu()[:, :, ::2]),
    "grown": lambda m, x: m.head1(F.interpolate(m.conv1(x).relu(), scale_factor=2)),
}
_FILES = (
    *("fpn", "unet", "crop", "back", "samepad", "reflect", "coordinates", "tokens", "position"),
    *("attention", "lstm", "bilstm", "gru", "last", "heads", "encoder", "learned"),
)
"""Rows that are quantized as ONNX files, too. (The older exporter refuses adaptive pools.)"""


def _auto_pad(pool: str, pad: str) -> onnx.ModelProto:
    """A convolution and a pool with auto_pad, as Keras exporters write them."""
    draw = np.random.default_rng(0)
    first = draw.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5
    second = draw.normal(size=(8, 8, 3, 3)).astype(np.float32) / 8
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], auto_pad=pad, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node(pool, ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2], auto_pad=pad),
        helper.make_node("Conv", ["c", "second"], ["y"]),
    ]
    return _model(nodes, {"first": first, "second": second}, ["n", 3, "height", "width"])


def _resized(extra: Sequence[onnx.NodeProto], resize: onnx.NodeProto) -> onnx.ModelProto:
    """A convolution, its result resized to the size of the image."""
    first = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32) / 5
    second = np.random.default_rng(1).normal(size=(4, 8, 1, 1)).astype(np.float32) / 3
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        *extra,
        resize,
        helper.make_node("Conv", ["r", "second"], ["y"]),
    ]
    stored = {"first": first, "second": second, "two": np.array([2]), "four": np.array([4])}
    return _model(nodes, stored, ["n", 3, "height", "width"])


def _sized() -> onnx.ModelProto:
    extra = [
        helper.make_node("Shape", ["x"], ["sx"]),
        helper.make_node("Shape", ["b"], ["sb"]),
        helper.make_node("Slice", ["sx", "two", "four"], ["hw"]),
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Slice", ["sb", "zero", "two"], ["nc"]),
        helper.make_node("Concat", ["nc", "hw"], ["size"], axis=0),
    ]
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return _resized(extra, helper.make_node("Resize", ["b", "", "", "size"], ["r"], **how))


def _model(
    nodes: Sequence[onnx.NodeProto], stored: Mapping[str, np.ndarray], shape: Sequence[int | str]
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _rows() -> tuple[Network, ...]:
    kinds = ((_IMAGES, IMAGE, HW), (_SEQUENCES, SEQUENCE, TIME), (_SIGNALS, SIGNAL, LENGTH))
    bodies = {n: (b, shape, dims) for table, shape, dims in kinds for n, b in table.items()}
    modules = [Network(n, shape, dims, body) for n, (body, shape, dims) in bodies.items()]
    files = [
        Network(f"{n}.onnx", bodies[n][1], bodies[n][2], bodies[n][0], as_file=True) for n in _FILES
    ]
    written = [
        Network("line.onnx", LINE, WIDTH, _text_line, as_file=True),
        Network("line-1.onnx", LINE, WIDTH, _text_line, as_file=True, batch=False),
        *(
            Network(f"{name}.onnx", IMAGE, HW, as_file=True, make=make)
            for name, make in {
                "same-max": lambda: _auto_pad("MaxPool", "SAME_UPPER"),
                "same-lower": lambda: _auto_pad("MaxPool", "SAME_LOWER"),
                "same-mean": lambda: _auto_pad("AveragePool", "SAME_UPPER"),
                "sized": _sized,
            }.items()
        ),
    ]
    return (*modules, *files, *written)


NETWORKS = _rows()
