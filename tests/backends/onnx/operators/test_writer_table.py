"""Writers of operators: the table, products."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.export.torch_exporter import translate
from qtool.backends.onnx.operators import kernel_of, register_custom_operator, writers
from qtool.core.errors import PlanError
from qtool.core.graph import torch_ops
from qtool.core.ops import Op
from qtool.core.ops.attention import grouped_attention, sequence_lengths
from qtool.core.ops.fused import routed_experts, skip_rms_norm
from qtool.core.ops.recurrent import dynamic_lstm
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import run
from tests.passes.differential import Function

aten = torch.ops.aten
HALF, CODE_128 = torch.tensor(0.5), torch.tensor(128, dtype=torch.uint8)


def ramp(*shape: int) -> torch.Tensor:
    """Multiples of 1/4 about zero: every sum of products below is exact in float32."""
    return (torch.arange(np.prod(shape)).reshape(shape) % 23 - 11) / 4


def codes(*shape: int) -> torch.Tensor:
    return (torch.arange(np.prod(shape)).reshape(shape) * 7 % 256).to(torch.uint8)


class Call(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.rest = function, args

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.rest)


CONV = {
    "padded": (ramp(1, 4, 6, 7), ramp(3, 4, 3, 3), ramp(3), [1, 1], [1, 1, 1, 1], [1, 1], 1),
    "asymmetric": (ramp(2, 4, 6, 7), ramp(3, 4, 3, 2), None, [2, 1], [0, 2, 1, 0], [1, 1], 1),
    "dilated groups": (ramp(1, 4, 7, 7), ramp(4, 2, 3, 3), ramp(4), [1, 2], [0] * 4, [2, 1], 2),
    "1d": (ramp(2, 4, 9), ramp(3, 4, 3), ramp(3), [2], [1, 0], [1], 1),
    "one column": (ramp(2, 4, 9, 1), ramp(4, 2, 3, 1), ramp(4), [2, 1], [1, 0, 2, 0], [2, 1], 2),
    "3d": (ramp(1, 2, 4, 5, 4), ramp(2, 2, 2, 3, 2), None, [1, 2, 1], [0, 1] * 3, [1] * 3, 1),
}
TRANSPOSED = {
    "padded": (ramp(1, 4, 5, 4), ramp(4, 3, 3, 3), ramp(3), [2, 1], [1, 0], [1, 0], 1, [1, 1]),
    "dilated groups": (ramp(2, 4, 4, 4), ramp(4, 2, 2, 3), None, [1, 2], [0, 1], [0, 0], 2, [2, 1]),
    "1d": (ramp(2, 4, 6), ramp(4, 2, 3), ramp(2), [2], [1], [1], 1, [1]),
    "3d": (
        ramp(1, 2, 3, 2, 3),
        ramp(2, 2, 2, 2, 2),
        ramp(2),
        [1, 2, 1],
        [0] * 3,
        [0] * 3,
        1,
        [1] * 3,
    ),
}
LARGEST = {
    "padded": (ramp(2, 3, 6, 7), [3, 2], [2, 1], [1, 0], [1, 1], False),
    "dilated, hanging over": (ramp(1, 2, 7, 8), [2, 3], [3, 2], [0, 1], [2, 1], True),
    "1d": (ramp(2, 3, 9), [4], [2], [2], [1], False),
    "3d": (ramp(1, 2, 4, 5, 4), [2, 2, 3], [1, 2, 1], [0, 1, 0], [1] * 3, False),
}
AVERAGES = {  # windows of 4 and of 8 cells: means of quarters are exact
    "padding that counts": (ramp(2, 3, 6, 7), [2, 2], [2, 1], [1, 0], False, True, None),
    "padding that does not": (ramp(2, 3, 6, 8), [4, 4], [2, 2], [2, 2], False, False, None),
    "1d": (ramp(2, 3, 9), [4], [2], [0], False, True, None),
    "3d": (ramp(1, 2, 4, 5, 4), [2, 2, 2], [1, 2, 1], [0, 1, 0], False, True, None),
    "a divisor": (ramp(2, 3, 6, 7), [2, 2], [2, 2], [1, 1], False, False, 8),
    "a divisor, hanging over": (ramp(2, 3, 7, 8), [2, 4], [2, 3], [0, 1], True, True, 16),
    "a window that would begin in the padding": (
        *(ramp(1, 2, 9, 8), [4, 4], [5, 4]),
        *([2, 2], True, True, 8),
    ),
    "1d, a divisor": (ramp(2, 3, 9), [4], [2], [1], False, True, 2),
}
ROWS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{f"conv {name}": (torch_ops.conv, args) for name, args in CONV.items()},
    **{f"conv_transpose {name}": (torch_ops.conv_transpose, a) for name, a in TRANSPOSED.items()},
    **{f"max_pool {name}": (torch_ops.max_pool, args) for name, args in LARGEST.items()},
    **{f"average_pool {name}": (torch_ops.average_pool, args) for name, args in AVERAGES.items()},
    "quantize": (torch_ops.quantize, (ramp(3, 40) * 25, HALF, CODE_128)),
    "dequantize": (torch_ops.dequantize, (codes(3, 40), HALF, CODE_128, None)),
    "dequantize per channel": (
        torch_ops.dequantize,
        (codes(2, 3, 4), ramp(3).abs(), torch.tensor([0, 128, 255], dtype=torch.uint8), 1),
    ),
    "pad_codes": (torch_ops.pad_codes, (codes(2, 3, 4), [1, 2, 0, 3], 130)),
    "global_average_pool": (torch_ops.global_average_pool, (ramp(2, 3, 4, 4),)),
    "linear": (aten.linear.default, (ramp(5, 6), ramp(4, 6), ramp(4))),
    "linear without bias": (aten.linear.default, (ramp(5, 6), ramp(4, 6))),
    "gemm": (torch_ops.gemm, (ramp(5, 6), ramp(6, 4), ramp(4))),
    "gemm without bias": (torch_ops.gemm, (ramp(5, 6), ramp(6, 4), None)),
    "dynamic_linear": (
        torch_ops.dynamic_linear,
        (ramp(5, 6), (ramp(6, 4) * 4).to(torch.int8), ramp(4).abs(), ramp(4)),
    ),
    "dynamic_linear of zeros": (
        torch_ops.dynamic_linear,
        (ramp(5, 6) * 0, (ramp(6, 4) * 4).to(torch.int8), ramp(4).abs(), None),
    ),
    "index_select": (aten.index_select.default, (ramp(3, 4), 1, torch.tensor([2, 0, 3]))),
    "constant_pad_nd": (aten.constant_pad_nd.default, (ramp(2, 3, 4), [1, 2, 3, 0], -1.5)),
    "constant_pad_nd with zeros": (aten.constant_pad_nd.default, (ramp(2, 3, 4), [0, 2])),
    "constant_pad_nd of integers": (
        aten.constant_pad_nd.default,
        (codes(2, 3).long(), [2, 1], 7.0),
    ),
}


@pytest.mark.parametrize(("operator", "args"), ROWS.values(), ids=ROWS.keys())
def test_the_onnx_form_computes_what_torch_does(operator: Any, args: tuple[Any, ...]) -> None:
    program = torch.export.export(Call(operator, args[1:]), args[:1])
    written = ir.to_proto(translate(program, writers(contrib=False), 18))
    (found,) = run(written, args[:1], optimise=False)
    expected = operator(*args).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)  # exact: see `ramp`


def test_the_rows_are_translated_by_qtool() -> None:
    assert {operator for operator, _ in ROWS.values()} <= set(writers(contrib=False))


def test_forms_of_the_runtime_are_for_targets_that_take_them() -> None:
    own = writers(contrib=True).keys() - writers(contrib=False).keys()
    stored = {torch_ops.linear_nbits, torch_ops.embedding_nbits, dynamic_lstm}
    stored |= {torch_ops.expert_nbits}
    stored |= {grouped_attention, routed_experts, sequence_lengths, skip_rms_norm}
    assert own == {aten.silu.default, aten.gelu.default, *stored}


def test_nodes_of_onnx_have_no_kernel_of_their_own() -> None:
    assert kernel_of("", "") is None
    assert kernel_of("", "Conv") is None


def test_an_operator_has_one_form() -> None:
    with pytest.raises(PlanError, match=r"registered already \(written by qtool\)"):
        register_custom_operator(Op(key="mine", targets=(torch_ops.idle,)), lambda x: x)
    with pytest.raises(PlanError, match=r"aten.relu.default is registered already \(relu\)"):
        register_custom_operator(Op(key="mine", targets=(aten.relu.default,)), lambda x: x)


SEEN = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]]).bool()
LEAST = torch.finfo(torch.float32).min
MASKS = {
    "bool": SEEN,
    "minus infinity": torch.zeros(4, 4).masked_fill(~SEEN, -math.inf),
    "the least number": torch.zeros(4, 4).masked_fill(~SEEN, LEAST),  # sees all, evenly
    "for each head": torch.stack([SEEN, SEEN.flip(0)]),
    "for each sample": SEEN.flip(1).view(1, 1, 4, 4),
    "nothing at all": torch.zeros(1, 1, dtype=torch.bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_query_that_sees_nothing(name: str) -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, 2 * x, x + 1, MASKS[name])

    x = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    file = float_onnx(capture_model(Function(attend).eval(), x).graph)
    for optimise in (False, True):
        (found,) = run(file, (x,), optimise)
        np.testing.assert_allclose(found, attend(x).numpy(), rtol=1e-5, atol=1e-6)


CHOSEN = {
    "chosen of finite numbers": (lambda x: torch.where(x[:1, :1, :, :4] > 0, 0.0, LEAST), 0),
    "and moved about": (lambda x: torch.where(x[0, 0, :, :4] > 0, 0.0, -9.0)[None, None], 0),
    "stored": (lambda _: MASKS["the least number"], 0),
    "chosen of infinity": (lambda x: torch.where(x[:1, :1, :, :4] > 0, 0.0, -math.inf), 1),
    "computed": (lambda x: x[:1, :1, :, :4] * 2, 1),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_mask_known_to_be_finite_is_not_looked_at(name: str) -> None:
    make, looks = CHOSEN[name]
    model = Function(lambda x: F.scaled_dot_product_attention(x, 2 * x, x + 1, make(x))).eval()
    x = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    file = float_onnx(capture_model(model, x).graph)
    assert [n.op_type for n in file.graph.node].count("ReduceMax") == looks
    (found,) = run(file, (x,))
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-6)
