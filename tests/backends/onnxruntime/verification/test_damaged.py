"""Files that are damaged in what a runtime would take: one sentence, in whatever reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import qtool
from qtool.core.errors import CaptureError, FileError, KernelError, describe


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    qtool.quantize(model, [torch.randn(4, 3, 8, 8)], accuracy="fast").export(path)
    return path


@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf"), -0.1])
def test_a_scale_is_a_positive_number(scale: float, file: Path, tmp_path: Path) -> None:
    for name in ("1.scale", "2.scale"):
        model = onnx.load(file)
        stored = next(i for i in model.graph.initializer if i.name == name)
        other = numpy_helper.to_array(stored).copy()
        other.reshape(-1)[0] = scale
        stored.CopyFrom(numpy_helper.from_array(other, name))
        onnx.save(model, tmp_path / "other.onnx")
        found = qtool.verify(tmp_path / "other.onnx")
        assert not found.passed
        assert "a scale is a positive number" in found.not_compared
        del model.metadata_props[:]  # of a file that carries no test
        onnx.save(model, tmp_path / "other.onnx")
        with pytest.raises(KernelError, match=r"its scale is .*; a scale is a positive number"):
            qtool.verify(tmp_path / "other.onnx")


def _bomb(path: Path) -> Path:
    """27 functions, each of which calls the next one twice."""
    taken, functions = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], []
    for i in range(27):
        kind, domain = ("Neg", "") if i == 26 else (f"f{i + 1}", "own")
        nodes = [
            helper.make_node(kind, [a], [b], domain=domain) for a, b in (("x", "y"), ("y", "z"))
        ]
        functions.append(helper.make_function("own", f"f{i}", ["x"], ["z"], nodes, taken))
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="own")], "g", [ends[0]], [ends[1]]
    )
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=taken), path)
    return path


def _copy(file: Path) -> Path:
    return Path(shutil.copy(file, file.with_name("copy.onnx")))


READERS: dict[str, Callable[[Path], Any]] = {
    "inspect": qtool.inspect,
    "verify": qtool.verify,
    "evaluate": lambda f: qtool.evaluate(f, nn.Linear(1, 1).eval(), [torch.ones(1, 1)]),
    "report": lambda f: qtool.report(f, [torch.ones(1, 1)], f.parent / "report", model=_copy(f)),
    "compare": lambda f: qtool.compare([f, _copy(f)], [torch.ones(1, 1)]),
    "bench": lambda f: qtool.bench([f, _copy(f)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_of_functions(reader: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="expand to 134,217,728 nodes"):
        READERS[reader](_bomb(tmp_path / "bomb.onnx"))


def test_weights_without_values() -> None:
    with pytest.raises(CaptureError, match="'weight' is on the meta device, which has no values"):
        qtool.capture_model(nn.Linear(2, 2).eval().to("meta"), torch.ones(1, 2))


def test_what_a_pass_folds_may_be_what_lost_the_digits() -> None:
    """A bias that a norm takes away again, far above all else."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)).eval()
    nn.init.constant_(model[0].bias, 1e5)  # type: ignore[arg-type]  # a tensor
    model[1].running_mean.fill_(1e5)  # type: ignore[union-attr,operator]  # a tensor
    graph = qtool.capture_model(model, torch.randn(4, 3, 8, 8)).graph
    assert not any("batch_norm" in str(n.target) for n in graph.graph.nodes)


def test_what_a_worker_says() -> None:
    text = "Caught ValueError in a worker.\nOriginal Traceback (most recent call last):\n"
    text += '  File "x", line 1, in a\n    raise ValueError\nValueError: bad sample\nand more'
    assert describe(RuntimeError(text)) == "ValueError: bad sample and more"
