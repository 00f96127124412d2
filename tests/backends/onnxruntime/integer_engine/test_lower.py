"""The integer program of whole models equals ONNX Runtime, to the last bit."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.errors import FileError, KernelError
from qtool.verification import Exactness
from tests.backends.onnx.export.networks import (
    NETWORKS,
    model,
    network,
    samples,
)
from tests.backends.onnxruntime.integer_engine.labels import labelled_values
from tests.models.arms import Arms

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


STRIDES, PADS = (1, 2, 3), ((0, 0, 0, 0), (1, 0, 2, 1), (0, 3, 1, 2))


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_convolutions_are_exact(groups: int, tmp_path: Path) -> None:
    """Each stride with each padding, in one file."""
    layers = {
        f"{stride}_{i}": nn.Sequential(
            nn.ZeroPad2d(pads),
            nn.Conv2d(16, 32, (3, 2), stride, dilation=(1, 2), groups=groups),
            nn.ReLU6(),
        )
        for stride, (i, pads) in product(STRIDES, enumerate(PADS))
    }
    net = Arms(layers).eval()
    found = quantize(net, [torch.randn(4, 16, 13, 10)], accuracy="fast")
    result = exact(found.to_onnx(), [3 * torch.randn(3, 16, 13, 10)], tmp_path)
    assert result.exact, str(result)


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
