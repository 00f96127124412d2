"""Quant points: identity, then the codes' own values, with a straight-through gradient."""

import copy

import pytest
import torch

from qtool import quantize
from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT8_NARROW, INT32, UINT8, QType
from qtool.frontends.captured_model import capture_model
from qtool.planning.fake_quantize import QuantPoint, insert_points, quant_points
from tests.backends.onnx.export.networks import NETWORKS, network, quantized, samples


def point(params: QuantParams | None = None) -> QuantPoint:
    made = QuantPoint("p")
    if params is not None:
        made.set_params(params)
    return made


def per_tensor(qtype: QType, scale: float = 0.1, zero: int = 0) -> QuantParams:
    return QuantParams(qtype, torch.tensor(scale), torch.tensor(zero))


def per_channel(qtype: QType, axis: int, zero: int = 0) -> QuantParams:
    return QuantParams(qtype, torch.tensor([0.1, 0.25, 3.0]), torch.tensor([zero] * 3), axis)


PARAMS = {
    "uint8": per_tensor(UINT8, zero=128),
    "uint8 of a ReLU": per_tensor(UINT8),
    "int8": per_tensor(INT8, zero=-3),
    "narrow": per_tensor(INT8_NARROW),
    "int32": per_tensor(INT32, 1e-6),
    "int8 channels 0": per_channel(INT8_NARROW, 0),
    "int8 channels 1": per_channel(INT8_NARROW, 1),
    "uint8 channels -1": per_channel(UINT8, -1, 100),
    "int32 channels": per_channel(INT32, 0),
}


def test_a_fresh_point_is_the_identity() -> None:
    x = torch.randn(3, requires_grad=True)
    made = point()
    assert made(x) is x
    assert made.params is None
    assert (made.scale.numel(), made.zero_point.numel()) == (0, 0)
    assert "identity" in repr(made)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_a_point_gives_the_values_of_the_codes(params: QuantParams, grad: bool) -> None:
    x = torch.randn(3, 3, 3) * 20
    if params.axis is not None and params.qtype is INT32:
        x = x * 1e7  # codes beyond 2**24, where float32 has gaps
    expected = params.dequantize(params.quantize(x))
    found = point(params)(x.requires_grad_(grad))
    if params.qtype is INT32:  # (code * scale) rounded once, where dequantize rounds the code first
        torch.testing.assert_close(found, expected, rtol=2e-7, atol=0)
    else:
        assert torch.equal(found, expected)
    assert found.requires_grad is grad


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_training_and_inference_give_the_same(params: QuantParams) -> None:
    x = torch.randn(3, 3, 3) * 20
    made = point(params)
    assert torch.equal(made(x), made(x.clone().requires_grad_()).detach())


def test_int32_codes_beyond_float32_are_exact() -> None:
    x = torch.tensor([2.0**27 + 16, -(2.0**40), 2.0**40])
    found = point(per_tensor(INT32, 0.25))(x)  # codes up to 2**31, values up to 2**29
    assert found.tolist() == [2.0**27 + 16, -(2.0**29), 2.0**29]


def test_the_gradient_is_one_inside_and_zero_where_clipped() -> None:
    params = per_tensor(UINT8, 0.5, 10)  # represents -5 .. 122.5
    x = torch.tensor([-5.2, -5.3, -0.26, 0.0, 60.1, 122.6, 122.8], requires_grad=True)
    made = point(params)
    weights = torch.arange(1.0, 8.0)
    (made(x) * weights).sum().backward()
    inside = torch.tensor([1, 0, 1, 1, 1, 1, 0])
    assert torch.equal(x.grad, weights * inside)
    assert not made.scale.requires_grad
    assert made.scale.grad is None


def test_the_gradient_per_channel_clips_by_channel() -> None:
    x = torch.full((3, 1), 20.0, requires_grad=True)  # 127 codes reach 12.7, 31.75 and 381
    point(per_channel(INT8_NARROW, 0))(x).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 1]


def test_no_grad_means_no_graph() -> None:
    with torch.no_grad():
        assert not point(per_tensor(INT8))(torch.ones(2, requires_grad=True)).requires_grad


def test_parameters_travel_in_the_state_dict() -> None:
    made = point(per_channel(INT8_NARROW, 0))
    state = made.state_dict()
    assert list(state) == ["scale", "zero_point"]
    assert (state["scale"].dtype, state["zero_point"].dtype) == (torch.float32, torch.int64)
    module = quantized("residual").module
    keys = module.state_dict().keys()
    for p in quant_points(module).values():
        path = next(k for k, m in module.named_modules() if m is p)
        assert {f"{path}.scale", f"{path}.zero_point"} <= keys


def test_parameters_are_copies() -> None:
    params = per_tensor(UINT8, 0.5)
    made = point(params)
    params.scale.fill_(7)
    assert made.scale.item() == 0.5
    assert made.params.qtype is UINT8


# torch's own pytree spec, which a GraphModule holds, warns when it is copied.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
def test_a_deepcopy_is_independent() -> None:
    x = samples("residual", 4)[0]
    module = quantized("residual").module
    before = module(x)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), before)
    for p in quant_points(twin).values():
        p.scale.mul_(4)
    assert not torch.equal(twin(x), before)
    assert torch.equal(module(x), before)


@pytest.mark.parametrize("name", ["residual", "concat", "outputs", "two_inputs", "padded_shortcut"])
def test_inserting_points_changes_nothing_but_the_copy(name: str) -> None:
    captured = capture_model(network(name), samples(name, 2))
    plan = captured.plan()
    graph, _ = captured.for_target(plan.target)
    code = graph.module.code
    prepared = insert_points(graph.module, plan)
    assert graph.module.code == code
    assert not quant_points(graph.module)
    assert set(quant_points(prepared)) == {p.name for p in plan if p.edges}
    x = samples(name, 5)
    with torch.no_grad():
        expected, found = network(name)(*x), prepared(*x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert {p.data_ptr() for p in prepared.parameters()} <= {
        p.data_ptr() for p in graph.module.parameters()
    }


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_point_of_the_plan_has_its_parameters(name: str) -> None:
    found = quantized(name)
    points = quant_points(found.module)
    for planned in found.plan:
        params = found.parameters[planned.name]
        if planned.edges:
            assert torch.equal(points[planned.name].scale, params.scale)
            assert torch.equal(points[planned.name].zero_point, params.zero_point)
        assert bool((params.scale > 0).all() and params.scale.isfinite().all())


class Named(torch.nn.Module):
    """Layers `a.b` and `a_b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.ModuleDict({"b": torch.nn.Linear(4, 4)})
        self.a_b, self.end = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.end(self.a_b(self.a["b"](x)))
        return y


def test_names_that_differ_in_signs_alone_have_points_of_their_own() -> None:
    torch.manual_seed(0)
    found = quantize(Named().eval(), [torch.randn(8, 4)], accuracy="fast")
    names = {p.name for p in found.plan.placed}
    assert {"a.b", "a_b"} <= names
    assert set(quant_points(found.module)) >= names
