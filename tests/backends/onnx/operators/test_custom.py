"""Rows read off schemas: every kind of argument, several results, and what is left out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnx.operators import CUSTOM_FORMS, register_custom_operator
from qtool.core.ops import custom_op_row
from tests.backends.onnx.operators.outside import gate, restored

library = torch.library.Library("qtool_tests_custom", "DEF")
library.define(
    "mix(Tensor x, Tensor? shift, Tensor scale, int[] order, str word='add', float gain=2.0)"
    " -> (Tensor, Tensor)"
)


def mix(
    x: torch.Tensor,
    shift: torch.Tensor | None,
    scale: torch.Tensor,
    order: list[int],
    word: str = "add",
    gain: float = 2.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert word == "add"
    y = x * scale * gain
    return (y if shift is None else y + shift).permute(order).contiguous(), y + 1


library.impl("mix", mix, "CPU")
torch.library.register_fake("qtool_tests_custom::mix", mix, lib=library)
OPERATOR = torch.ops.qtool_tests_custom.mix.default

PLAIN = onnx.parser.parse_function("""
    <domain: "tests.mix", opset_import: ["": 18]>
    Mix <order, word, gain> (x, shift, scale) => (turned, more)
    {
        scaled = Mul (x, scale)
        factor = Constant <value_float: float = @gain> ()
        gained = Mul (scaled, factor)
        turned = Transpose <perm: ints = @order> (gained)
        one = Constant <value_float = 1.0> ()
        more = Add (gained, one)
    }
""")


class Mixed(nn.Module):
    """[batch, 6] -> two results, of a layer and the operator behind it."""

    def __init__(self, with_shift: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(6, 6), nn.Parameter(torch.rand(6))
        self.shift = nn.Parameter(torch.rand(6)) if with_shift else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned, more = OPERATOR(self.layer(x), self.shift, self.scale, [0, 1])
        return self.layer(turned) + more


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    with restored():
        yield


def test_positions_come_from_the_schema() -> None:
    row = custom_op_row(OPERATOR, weights=("scale",))
    assert (row.key, row.targets) == ("qtool_tests_custom::mix", (OPERATOR,))
    assert (row.inputs, row.weight, row.extra_weights) == ((0, 1), 2, ())
    register_custom_operator(row, PLAIN)
    form = CUSTOM_FORMS[OPERATOR]
    assert (form.domain, form.name) == ("tests.mix", "Mix")
    two = custom_op_row(gate, weights=("r", "weight"))
    assert (two.inputs, two.weight, two.extra_weights) == ((0, 3), 1, (2,)), (
        "a weight of that name is first"
    )


def test_nothing_is_said_that_a_person_did_not_say() -> None:
    row = custom_op_row(OPERATOR)
    assert (row.weight, row.weight_only_reason, row.macs) == (None, "", None)
    register_custom_operator(row, PLAIN)
    assert CUSTOM_FORMS[OPERATOR].kernel is None


@pytest.mark.parametrize("own", [None, OPERATOR])
def test_arguments_of_every_kind(tmp_path: Path, own: Callable[..., Any] | None) -> None:
    """An input that is left out, a list, a word and a default; two results."""
    qtool.register_operator(OPERATOR, onnx=PLAIN, kernel=own)
    data = [torch.randn(8, 6, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    model = qtool.quantize(Mixed(with_shift=False).eval(), data, accuracy="fast")
    found = model.export(tmp_path / "mix.onnx")
    file = onnx.load(tmp_path / "mix.onnx")
    (node,) = (n for n in file.graph.node if n.domain)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes == {"order": [0, 1], "word": b"add", "gain": 2.0}
    assert (node.input[1], len(node.output)) == ("", 2)
    assert found.exactness.exact
    assert found.parity.as_written.worst < 1e-3  # codes


def test_a_wrong_function_is_seen(tmp_path: Path) -> None:
    """The function above does not add the shift: the file is not what the model is."""
    qtool.register_operator(OPERATOR, onnx=PLAIN)
    model = qtool.quantize(Mixed(with_shift=True).eval(), [torch.randn(8, 6)], accuracy="fast")
    found = model.export(tmp_path / "mix.onnx", verify=False)
    assert found is None
    assert model.verify(tmp_path / "mix.onnx").parity.as_written.worst > 10


def test_a_wrong_kernel_is_seen(tmp_path: Path) -> None:
    def twice(*given: Any, **options: Any) -> Any:
        return tuple(2 * y for y in OPERATOR(*given, **options))

    qtool.register_operator(OPERATOR, onnx=PLAIN, kernel=twice)
    model = qtool.quantize(Mixed(with_shift=False).eval(), [torch.randn(8, 6)], accuracy="fast")
    model.export(tmp_path / "mix.onnx", verify=False)
    assert not model.verify(tmp_path / "mix.onnx").exactness.exact


def test_macs_are_those_of_the_sizes() -> None:
    seen: list[Any] = []

    def count(*arguments: Any) -> int:
        seen.append(arguments)
        return 640

    qtool.register_operator(OPERATOR, onnx=PLAIN, macs=count)
    model = Mixed(with_shift=False).eval()
    decision = qtool.capture_model(model, torch.randn(8, 6)).plan().decision("mix")
    assert decision.macs == 640 // 8
    assert seen[0] == ((8, 6), None, (6,), [0, 1])


def test_weights_that_are_computed_stay_in_float() -> None:
    class Computed(Mixed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(OPERATOR(self.layer(x), None, x, [0, 1])[0])

    qtool.register_operator(OPERATOR, onnx=PLAIN, weights=("scale",))
    plan = qtool.capture_model(Computed(False).eval(), torch.randn(8, 6)).plan()
    assert plan.decision("mix").reason == "its scale is computed at run time"
