"""The integer program of whole models equals ONNX Runtime, to the last bit."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn
from torch.nn import functional as F

from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.errors import FileError, KernelError
from qtool.verification import Exactness
from tests.backends.onnx.export.networks import (
    NETWORKS,
    Applied,
    conv_bn,
    float_file,
    model,
    network,
    samples,
)
from tests.backends.onnxruntime.integer_engine.labels import labelled_values

# a node the runtime has no integer kernel for: run in the runtime's own float kernel
ONLY_FLOAT_STEPS = {"attention", "conv_transpose", "pad_with_ones", "two_inputs"}


def exact(file: onnx.ModelProto, inputs: Iterable[torch.Tensor], folder: Path) -> Exactness:
    path = folder / "model.onnx"
    onnx.save(file, path)
    return compare_codes(path, [[t.numpy() for t in inputs]])


def test_the_comparison_sees_one_wrong_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qtool.backends.onnxruntime.verification import exported_file as module

    file = model("residual")
    program = lower(file)
    step = next(s for s in program.instructions if s.kind == "integer")
    kernel = step.kernel
    object.__setattr__(step, "kernel", lambda *codes: kernel(*codes) ^ 1)
    monkeypatch.setattr(module, "lower", lambda *_: program)
    found = exact(file, samples("residual", 4), tmp_path)
    assert not found.exact
    assert found.first == program.labels[step.output]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 9])
def test_every_network_is_exact(name: str, batch: int, tmp_path: Path) -> None:
    found = exact(model(name), samples(name, batch, seed=3), tmp_path)
    assert found.exact, str(found)
    assert bool(found.float_steps) == (name in ONLY_FLOAT_STEPS)


def shuffle(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = m.conv(x)
    n, c, h, w = y.shape
    return m.last(y.reshape(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w))


def shared(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = m.conv(x)
    return m.last(y + y.relu())


def split(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    a, b = m.conv(x).relu().chunk(2, 1)
    return m.last(torch.cat([b, a], 1))


def squeeze_excite(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = m.conv(x)
    return m.last(y * F.hardsigmoid(m.gate(F.adaptive_avg_pool2d(y, 1))))


BODIES: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "hard_swish": lambda m, x: m.last(F.hardswish(m.conv(x))),
    "silu": lambda m, x: m.last(F.silu(m.conv(x))),
    "leaky_relu": lambda m, x: m.last(F.leaky_relu(m.conv(x), 0.1)),
    "sigmoid": lambda m, x: m.last(torch.sigmoid(m.conv(x))),
    "ceil_mode": lambda m, x: m.last(F.max_pool2d(m.conv(x), 3, 2, ceil_mode=True)),
    "unfused_norm": lambda m, x: m.last(m.norm(torch.cat([m.conv(x), x], 1))[:, :16].relu()),
    "odd_slice": lambda m, x: m.last(m.conv(x)[:, :, 1::2, :-1]),
    "transpose": lambda m, x: m.last(m.conv(x).transpose(2, 3)),
    "permuted_twice": lambda m, x: m.last(m.conv(x).permute(0, 2, 3, 1).permute(0, 3, 1, 2)),
    "shared_input": shared,
    "nearest": lambda m, x: m.last(F.interpolate(m.conv(x), scale_factor=2, mode="nearest")),
    "bilinear": lambda m, x: m.last(F.interpolate(m.conv(x), (17, 21), mode="bilinear")),
    "pixel_shuffle": lambda m, x: m.small(F.pixel_shuffle(m.conv(x), 2)),
    "scalar": lambda m, x: m.last(m.conv(x) * 0.5 + 1.0),
    "shuffle": shuffle,
    "split": split,
    "squeeze_excite": squeeze_excite,
}


@pytest.mark.parametrize("name", BODIES)
def test_operators_between_convolutions_are_exact(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = Applied(
        BODIES[name],
        conv=conv_bn(3, 16, 3),
        gate=nn.Conv2d(16, 16, 1),
        norm=nn.BatchNorm2d(19),
        last=nn.Conv2d(16, 8, 1),
        small=nn.Conv2d(4, 8, 1),
    ).eval()
    found = quantize(net, [torch.randn(8, 3, 9, 11) for _ in range(2)])
    for size in (1, 5):
        result = exact(found.to_onnx(), [torch.randn(size, 3, 9, 11)], tmp_path)
        assert result.exact, str(result)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1), (0, 3, 1, 2)])
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_convolutions_are_exact(
    stride: int, pads: tuple[int, ...], groups: int, tmp_path: Path
) -> None:
    conv = nn.Conv2d(16, 32, (3, 2), stride, dilation=(1, 2), groups=groups)
    net = nn.Sequential(nn.ZeroPad2d(pads), conv, nn.ReLU6()).eval()
    found = quantize(net, [torch.randn(4, 16, 13, 10)])
    result = exact(found.to_onnx(), [3 * torch.randn(3, 16, 13, 10)], tmp_path)
    assert result.exact, str(result)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # onnxruntime's quantizer, in onnx
@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_files_of_another_quantizer_are_exact(
    activations: str, per_channel: bool, tmp_path: Path
) -> None:
    from onnxruntime import quantization as tool

    class Reader(tool.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{"x": samples("residual", 8, s)[0].numpy()} for s in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    (tmp_path / "float.onnx").write_bytes(float_file("residual"))
    tool.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "other.onnx",
        Reader(),
        quant_format=tool.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=tool.QuantType[activations],
        weight_type=tool.QuantType.QInt8,
    )
    inputs = [samples("residual", 16, 9)[0].numpy()]
    found = compare_codes(tmp_path / "other.onnx", [inputs])
    assert found.exact, str(found)


def test_the_tflite_profile_holds_int8_codes() -> None:
    file = model("residual")
    (x,) = samples("residual", 4)
    signed, unsigned = (labelled_values(lower(file, p), x) for p in ("tflite", None))
    name = "add" if "add" in signed else next(n for n in signed if signed[n].dtype == torch.int8)
    apart = signed["x"].int() + 128 - unsigned["x"].int()
    assert signed[name].dtype == torch.int8
    assert unsigned["x"].dtype == torch.uint8
    assert int(apart.abs().max()) <= 1  # ties are rounded away from zero there


def test_int8_that_several_read_is_integer_on_arm_alone() -> None:
    """A file of the target for ARM: x86 turns int8 of one reader into uint8, and no other."""
    data = [samples("residual", 4)]
    found = quantize(network("residual"), data, target="onnxruntime-arm", accuracy="fast")
    arm, x86 = (found.integer(f"onnxruntime-{cpu}") for cpu in ("neon", "x64"))
    assert x86.float_nodes > arm.float_nodes == 0


def test_unknown_profiles_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="onnxruntime-x64"):
        lower(model("linear"), "nosuch")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(FileError, match=r"text\.onnx"):
        lower(tmp_path / "text.onnx")


def test_a_scale_that_is_computed_is_refused_by_name() -> None:
    file = model("linear")
    kept = [i for i in file.graph.initializer if i.name != "0.weight.scale"]
    removed = next(i for i in file.graph.initializer if i.name == "0.weight.scale")
    del file.graph.initializer[:]
    file.graph.initializer.extend(kept)
    shape = list(numpy_helper.to_array(removed).shape)
    file.graph.input.append(onnx.helper.make_tensor_value_info("0.weight.scale", 1, shape))
    with pytest.raises(KernelError, match=r"0\.weight\.dequantize.*computed at run time"):
        lower(file)


@pytest.mark.parametrize(
    "stored",
    [
        onnx.helper.make_tensor("names", TensorProto.STRING, [2], [b"cat", b"dog"]),
        onnx.helper.make_tensor("names", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("moved", [True, False])
def test_constants_that_are_no_numbers_of_torch_are_refused(
    stored: onnx.TensorProto, moved: bool
) -> None:
    """As inputs of a move, and as outputs of the graph."""
    node = onnx.helper.make_node("Identity", ["names"], ["shown"], name="label")
    made = onnx.helper.make_tensor_value_info("shown" if moved else "names", stored.data_type, [2])
    graph = onnx.helper.make_graph([node], "g", [], [made], [stored])
    with pytest.raises(KernelError, match="'names' is of the type"):
        lower(onnx.helper.make_model(graph))
