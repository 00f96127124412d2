"""Each step of a file against the plan: what is wrong is found where it is, however small and deep;
what only travels is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.session import VERSION
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.node_parity import compare_nodes
from qtool.core import graph as G
from qtool.core.graph.perturbation import PerturbedInterpreter, within_tolerance
from qtool.verification import NodeParity
from tests.backends.onnx.export.networks import NETWORKS, exported, model, quantized


def checked(name: str, file: onnx.ModelProto | bytes, tmp_path: Path) -> NodeParity:
    path = tmp_path / "file.onnx"
    data = file if isinstance(file, bytes) else file.SerializeToString()
    path.write_bytes(data)
    onnx_file, made = ExportedFile(path), quantized(name)
    found, outputs = compare_nodes(
        onnx_file, made.module, made.graph.head(made.sample, 4), onnx_file.program()
    )
    assert len(outputs) == len(onnx_file.file.outputs)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_right_files_are_right_in_every_step(name: str, tmp_path: Path) -> None:
    found = checked(name, exported(name), tmp_path)
    assert found.passed, str(found)
    assert found.compared > 4
    assert str(found).startswith(f"node by node ({found.samples} samples): all ")


@pytest.mark.parametrize("factor", [1.05, 3.0])
def test_a_wrong_scale_is_found_where_it_is(factor: float, tmp_path: Path) -> None:
    wrong = model("residual")
    (scale,) = (i for i in wrong.graph.initializer if i.name == "conv2.0.weight.scale")
    array = numpy_helper.to_array(scale) * np.float32(factor)
    scale.CopyFrom(numpy_helper.from_array(array, scale.name))
    found = checked("residual", wrong, tmp_path)
    assert found.wrong
    assert all(step.startswith("conv2.0 (") for step in found.wrong)
    assert f"{len(found.wrong)} of {found.compared} differ from the plan: conv2.0" in str(found)


def test_a_wrong_bias_of_the_last_layer_is_seen_at_the_output(tmp_path: Path) -> None:
    wrong = model("linear")
    biases = [i for i in wrong.graph.initializer if i.name.endswith("bias.codes")]
    array = numpy_helper.to_array(biases[-1]) + np.int32(20000)
    biases[-1].CopyFrom(numpy_helper.from_array(array.astype(np.int32), biases[-1].name))
    assert not checked("linear", wrong, tmp_path).passed


class Chaos(nn.Module):
    """A network that makes a hundred codes of one within a few layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(26))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.randn(64, 64) * 3 / 8)
                layer.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_differences_that_travel_are_none_of_the_steps() -> None:
    found = qtool.quantize(
        Chaos().eval(), [torch.randn(64, 64) for _ in range(2)], accuracy="fast"
    ).verify()
    assert found.parity.optimised.mean > 8
    assert found.exactness.exact
    assert found.parity.steps.passed
    assert found.passed
    assert found.parity.tolerance is None


class Padded(nn.Module):
    """A pad of zeros in front of a max pool of what is negative, all of it in float."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = (
            nn.Conv2d(3, 8, 3),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 4, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x)) - 0.8
        y = F.gelu(F.max_pool2d(F.pad(y, (1, 1, 1, 1)), 3, 2))
        return self.last(self.norm(y))


def test_what_is_wrong_in_float_is_found(tmp_path: Path) -> None:
    recipe = [{"select": "first", "as": "float"}]
    made = qtool.quantize(
        Padded().eval(), [torch.randn(4, 3, 20, 20)], recipe=recipe, accuracy="fast"
    )
    assert made.export(tmp_path / "right.onnx").passed
    file = onnx.load(tmp_path / "right.onnx")
    pad = next(n for n in file.graph.node if n.op_type == "Pad")
    file.graph.initializer.append(numpy_helper.from_array(np.array(7, np.float32), "seven"))
    pad.input[:] = [*pad.input[:2], "seven"]
    onnx.save(file, tmp_path / "wrong.onnx")
    found = made.verify(tmp_path / "wrong.onnx")
    assert found.exactness.exact  # the engine runs floats in the same runtime
    assert found.parity.steps.wrong
    assert not found.passed


@pytest.mark.skipif(VERSION >= (1, 32), reason="ONNX Runtime 1.32 fuses it rightly")
def test_what_the_runtime_fuses_wrongly_in_float_is_found(tmp_path: Path) -> None:
    recipe = [{"select": "first", "as": "float"}]
    made = qtool.quantize(
        Padded().eval(), [torch.randn(4, 3, 20, 20)], recipe=recipe, accuracy="fast"
    )
    assert made.export(tmp_path / "right.onnx").passed
    file = onnx.load(tmp_path / "right.onnx")
    pads = {n.output[0] for n in file.graph.node if n.op_type == "Pad"}
    (idle,) = (n for n in file.graph.node if n.op_type == "Max" and n.input[0] in pads)
    (pool,) = (n for n in file.graph.node if idle.output[0] in n.input)
    pool.input[0] = idle.input[0]
    file.graph.node.remove(idle)
    onnx.save(file, tmp_path / "fused.onnx")
    found = made.verify(tmp_path / "fused.onnx")
    assert found.exactness.exact  # the engine runs floats in the same runtime
    assert len(found.parity.steps.wrong) == 1
    assert "in float" in found.parity.steps.wrong[0]
    assert not found.passed


@pytest.mark.parametrize(("shift", "passed"), [(1, True), (2, False)])
def test_an_integer_kernel_may_round_otherwise_by_a_code(
    shift: int, passed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(exported("residual"))
    onnx_file, made = ExportedFile(path), quantized("residual")
    program = onnx_file.program()
    changed = _with_kernels(program, shift)
    found, _ = compare_nodes(onnx_file, made.module, made.graph.head(made.sample, 4), changed)
    assert found.passed is passed
    integers = sum(s.kind == "integer" and s.output in program.params for s in program.instructions)
    assert len(found.wrong) == (0 if passed else integers)


def _with_kernels(program: Program, shift: int) -> Program:
    """Integer kernels whose codes in the middle are all off."""

    def off(kernel):  # type: ignore[no-untyped-def]
        def run(*x):  # type: ignore[no-untyped-def]
            codes = kernel(*x)
            right = codes.to(torch.int64)
            inside = (right > 4) & (right < 250)
            return torch.where(inside, right + shift, right).to(codes.dtype)

        return run

    steps = tuple(
        replace(s, kernel=off(s.kernel))
        if s.kind == "integer" and s.output in program.params
        else s
        for s in program.instructions
    )
    return replace(program, instructions=steps)


def test_dynamic_layers_are_compared_at_the_outputs() -> None:
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    made = qtool.quantize(net, [torch.randn(16, 16)], mode="dynamic", accuracy="fast")
    found = made.verify()
    assert found.parity.steps.passed
    with torch.no_grad():
        next(made.module.parameters()).mul_(0.9)
    moved = made.verify()  # exported anew
    assert moved.parity.steps.passed


class Cancels(nn.Module):
    """The mean of symmetric weights under a uniform distribution: zero, the sum of large terms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.bins = nn.Linear(8, 36), nn.Parameter(torch.linspace(-4, 4, 9) ** 3)
        with torch.no_grad():
            self.first.weight.zero_()
            self.first.bias.fill_(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = self.first(x).reshape(-1, 9).softmax(1)
        return F.linear(spread, self.bins).reshape(-1, 4)


def test_terms_that_cancel_are_compared_by_what_a_code_changes() -> None:
    made = qtool.quantize(Cancels().eval(), [torch.randn(16, 8)], recover=[])
    steps = made.verify().parity.steps
    assert steps.passed, str(steps)


class Tiny(nn.Module):
    """exp(x) - 1 of numbers so small that what float32 leaves of the 1 shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 4, bias=False), nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.last.weight *= 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.celu(self.last(self.first(x)))


def tampered(made: qtool.QuantizedModel, name: str, path: Path) -> bool:
    """Whether a file of which one constant is a hundredth larger passes."""
    file = made.to_onnx()
    (held,) = (i for i in file.graph.initializer if i.name == name)
    array = numpy_helper.to_array(held) * np.float32(1.01)
    held.CopyFrom(numpy_helper.from_array(array, held.name))
    onnx.save(file, path)
    return made.verify(path).passed


def test_a_step_is_allowed_its_own_rounding_and_no_more(tmp_path: Path) -> None:
    made = qtool.quantize(Tiny().eval(), [torch.randn(32, 8) for _ in range(2)], accuracy="fast")
    assert made.export(tmp_path / "right.onnx").passed
    assert not tampered(made, "last.weight.scale", tmp_path / "wrong.onnx")


def test_each_value_is_allowed_what_its_rounding_does() -> None:
    real, open_ = torch.tensor([1.0, -2.0, 500.0]), torch.tensor([1e-7, 1e-7, 1.0])
    assert within_tolerance(real, real + torch.tensor([0.0, 0.0, 8.0]), open_)  # beside a pole
    assert not within_tolerance(real, real + torch.tensor([0.0, 0.0, 12.0]), open_)
    assert not within_tolerance(real, real + torch.tensor([0.2, 0.0, 0.0]), open_)
    assert not within_tolerance(real, real.where(real > 0, torch.nan), open_)
    assert not within_tolerance(real, real[:2], open_)
    found, moves = torch.tensor([3, 3]), torch.tensor([2.0, 0.0])
    assert within_tolerance(found, torch.tensor([5, 3]), moves)
    assert not within_tolerance(found, torch.tensor([3, 4]), moves)


def test_what_moves_and_what_does_not() -> None:
    graph = qtool.capture_model(Tiny().eval(), torch.randn(4, 8)).graph
    run, x = PerturbedInterpreter(graph.module), torch.randn(4, 8)
    run.exact = True
    (still,) = run.outputs((x,), {})
    assert torch.equal(still, graph.module(x))
    run.exact = False
    (moved,) = run.outputs((x,), {})
    assert 1e-9 < float((moved - still).abs().max()) < 2e-7


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bins = torch.stft(x, 64, 64, window=torch.ones(64), center=False, return_complex=True)
        return torch.view_as_real(bins)


def test_a_bin_of_a_spectrum_rounds_as_the_largest_of_its_frame() -> None:
    """A loud frame and a quiet one, each a tone: nearly all bins are near zero."""
    tone = torch.sin(torch.arange(64) * torch.pi / 4)
    x = torch.cat([tone, tone / 1000])[None]
    module = torch.export.export(Spectrum(), (x,)).module()
    assert isinstance(module, torch.fx.GraphModule)
    run = PerturbedInterpreter(module)
    run.exact = True
    (still,) = run.outputs((x,), {})
    run.exact = False
    (moved,) = run.outputs((x,), {})
    loud, quiet = (moved - still)[0, 20:].abs().mean((0, 2))
    largest = float(still.abs().max())
    assert 1e-7 * largest < float(loud) < 1e-6 * largest
    assert 500 < float(loud / quiet) < 2000


def test_what_is_in_front_of_known_results_is_not_run_again() -> None:
    graph = qtool.capture_model(Tiny().eval(), torch.randn(4, 8)).graph
    x, called = torch.randn(4, 8), []

    class Recorded(PerturbedInterpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            called.append(target)
            return super().call_function(target, args, kwargs)

    run, calls = Recorded(graph.module), list(G.calls(graph.graph))
    (whole,) = run.outputs((x,), {})
    assert called == [n.target for n in calls]
    first = torch.zeros(4, *G.shape(calls[0])[1:])
    called.clear()
    run.run_only(G.output_nodes(graph.graph), {calls[0]: lambda: first})
    (other,) = run.outputs((x,), {})
    assert called == [n.target for n in calls[1:]]
    assert other.shape == whole.shape
    run.run_only([], {})
    called.clear()
    assert run.outputs((x,), {}) == [None]
    assert called == []
