"""What an export keeps, and what it refuses."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import qtool
from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.export.exported_program import SCOPE, to_program
from qtool.backends.onnx.export.onnx_file import describe_export_error
from qtool.core import graph as G
from qtool.core.errors import ExportError
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import NETWORKS, quantized, run, samples
from tests.frontends.onnx.files import behind_conv, images, loaded

PADDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
FORMS = {
    "same": (18, 'AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    "dilated": (19, "AveragePool <kernel_shape = [2, 2], dilations = [2, 2]>"),
    "over": (19, f"AveragePool <{PADDED}, ceil_mode = 1, count_include_pad = 1>"),
    "oldest": (7, 'Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>'),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_as_in_the_file(form: str, tmp_path: Path) -> None:
    opset, call = FORMS[form]
    text = f"p = {call} (h) y0 = Conv <kernel_shape = [3, 3]> (p, w2)"
    file, x = behind_conv(text, opset), images(16)
    quantized = qtool.quantize(loaded(file, tmp_path), [x], accuracy="fast")
    found = quantized.export(tmp_path / "int8.onnx")
    assert found.passed
    (real,), (coded,) = (run(f, [x]) for f in (file, onnx.load(tmp_path / "int8.onnx")))
    assert ((real - coded) ** 2).sum() < 1e-2 * (real**2).sum()


@pytest.mark.parametrize("name", ["residual", "outputs", "two_inputs", "linear_3d"])
def test_the_program_computes_what_the_graph_does(name: str) -> None:
    found = quantized(name)
    program = to_program(found.qdq, found.graph)
    x = samples(name, 5)
    outputs = program.module(check_guards=False)(*x)
    for a, b in zip(pytree.tree_leaves(found.qdq(*x)), outputs, strict=True):
        assert torch.equal(a, b)
    assert len(outputs) == len(NETWORKS[name].outputs)


def test_attributes_are_lifted_by_kind_and_nodes_carry_their_names() -> None:
    found = quantized("conv_transpose")
    program = to_program(found.qdq, found.graph)
    signature = program.graph_signature
    assert set(signature.parameters) == {"up.bias"}
    kinds = {name: program.state_dict[name].dtype for name in signature.buffers}
    assert {torch.int8, torch.int32, torch.uint8} < set(kinds.values())
    assert list(signature.user_inputs) == ["x"]
    scopes = {
        G.name_of(n): n.meta["nn_module_stack"]
        for n in program.graph.nodes
        if n.op == "call_function"
    }
    assert scopes["up"] == {"up": ("up", SCOPE)}


def test_the_graph_itself_is_not_changed() -> None:
    found = quantized("residual")
    before = str(found.qdq.graph)
    to_program(found.qdq, found.graph)
    assert str(found.qdq.graph) == before


class Commonest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mode(x, 1).values + 1


class Filtered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        return torch.fft.irfft(torch.sinh(spectrum) * self.weight, n=8)


@pytest.mark.parametrize(
    ("model", "operator", "code", "remedy"),
    [
        (Commonest, r"mode \(aten\.mode\.default", r"return torch\.mode", "register_op"),
        (Filtered, r"sinh \(aten\.sinh\.default", r"return torch\.fft\.irfft", "view_as_real"),
    ],
)
def test_the_operator_its_line_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, model: type[nn.Module], operator: str, code: str, remedy: str
) -> None:
    monkeypatch.setattr("torch.fx.config.do_not_emit_stack_traces", False)
    captured = capture_model(model().eval(), torch.randn(4, 8))
    where = rf"{operator} at \S*test_export_errors\.py:\d+: {code}.*\) has no ONNX form; .*{remedy}"
    with pytest.raises(ExportError, match=where) as raised:
        float_onnx(captured.graph)
    assert "\n" not in str(raised.value)


def test_anything_else_is_the_innermost_cause() -> None:
    inner, outer = ValueError("the cause:\n a reason\n more"), RuntimeError("wrapped")
    outer.__cause__ = inner
    assert describe_export_error(torch.fx.Graph(), outer) == "the cause: a reason"
    assert describe_export_error(torch.fx.Graph(), ValueError()) == "ValueError"
