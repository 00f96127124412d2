"""Fake quantization: modules in the graph where the plan quantizes a tensor.

A point is the identity until its parameters are set; then it rounds its input to the values that
the integer model can represent. A dynamic point computes its parameters from each batch, as the
integer model does. The gradient is a straight-through estimate (Bengio et al. 2013), and zero where
the value is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph.torch_ops import range_of_batch
from qtool.core.quant_params import QuantParams, affine_codes, unbounded_codes
from qtool.core.types import INT32, Dynamic, QType, Requantized
from qtool.planning.plan import Kind, Point, QuantPlan


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, q: QType
    ) -> Any:
        codes = unbounded_codes(x, scale, zero)
        clamped = codes.clamp(q.qmin, q.qmax)
        ctx.save_for_backward(codes == clamped)
        return (clamped - zero) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None, None


class QuantPoint(nn.Module):
    """One quantized tensor of the plan.

    Attributes:
        point: name of the point in the plan.
        qtype: integer type; None until `set_params` is called.
        axis: axis of the channels; None per tensor.
        block: number of elements per scale along `axis`; None per channel.
        scale: buffer, float32, as in QuantParams; empty until `set_params` is called, so that a
            state_dict distinguishes a calibrated point from a new one.
        zero_point: buffer, int64, as `scale`.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        self.point = name
        self.qtype: QType | None = None
        self.axis: int | None = None
        self.block: int | None = None
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0, dtype=torch.int64))

    @property
    def params(self) -> QuantParams | None:
        """The parameters; None before `set_params`."""
        if self.qtype is None:
            return None
        return QuantParams(self.qtype, self.scale, self.zero_point, self.axis, self.block)

    def set_params(self, params: QuantParams) -> None:
        """Set copies of the parameters."""
        self.qtype, self.axis, self.block = params.qtype, params.axis, params.block
        self.scale, self.zero_point = params.scale.clone(), params.zero_point.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round floats of any shape to the grid of this point's parameters."""
        params = self.params
        if params is None:
            return x
        exact = torch.float64 if self.qtype is INT32 else x.dtype  # float32 cannot hold int32 codes
        scale = params.along(self.scale.to(x.device, exact), x.shape)
        zero = params.along(self.zero_point.to(x.device, exact), x.shape)
        return _fake_quantize(x.to(exact), scale, zero, params.qtype).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.point}, {self.qtype or 'identity'}"


class DynamicPoint(nn.Module):
    """A tensor whose parameters follow from its range in each batch."""

    def __init__(self, name: str, spec: Dynamic) -> None:
        super().__init__()
        self.point, self.qtype, self.per_row = name, spec.qtype, spec.per_row

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round floats of any shape; the gradient treats the range as a constant."""
        q = self.qtype
        scale, zero = range_of_batch(x.detach(), q.qmin, q.qmax, self.per_row)
        return _fake_quantize(x, scale, zero, self.qtype)

    def extra_repr(self) -> str:
        return f"{self.point}, {self.qtype}"


def _fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, q: QType
) -> torch.Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        rounded: torch.Tensor = _FakeQuantize.apply(  # type: ignore[no-untyped-call]  # torch's own
            x, scale, zero, q
        )
        return rounded
    return affine_codes(x, scale, zero, q).sub_(zero).mul_(scale)


_POINTS = "quant_points"
_Place = AbstractContextManager[None]
"""A context in which nodes are inserted at a place of a graph."""


def insert_points(module: fx.GraphModule, plan: QuantPlan) -> fx.GraphModule:
    """Return a copy of the graph with a point on every edge of the plan; tensors are shared."""
    module = G.clone(module)
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    calls: dict[str, fx.Node] = {}
    for point in plan.placed:
        source, name = nodes[point.edges[0].source if point.edges else point.name], point.name
        if isinstance(point.spec, Dynamic):  # what the layer reads may be quantized already
            user = nodes[point.edges[0].user]
            dynamic, before = DynamicPoint(name, point.spec), module.graph.inserting_before(user)
            call = insert_module(module, _POINTS, name, dynamic, (G.source(user),), before)
            user.args = (call, *user.args[1:])
            call.meta[G.NAME] = value_names.quant_point(name)
            continue
        if not isinstance(point.spec, Requantized):
            read, place = source, _insertion_point(point, source, nodes)
        else:
            read = calls[point.spec.point]
            place = module.graph.inserting_after(read)
        call = insert_module(module, _POINTS, name, QuantPoint(name), (read,), place)
        call.meta[G.NAME] = value_names.quant_point(name)
        calls[name] = call
        for user in (nodes[e.user] for e in point.edges):
            user.replace_input_with(source, call)
    module.graph.lint()
    module.recompile()
    return module


def insert_probes(module: fx.GraphModule, probes: Mapping[str, str]) -> dict[str, nn.Module]:
    """Insert an identity module on each tensor, in place; `probes`: {name: tensor}."""
    nodes = {G.name_of(n): n for n in module.graph.nodes}
    modules: dict[str, nn.Module] = {name: nn.Identity() for name in probes}
    for name, tensor in probes.items():
        source = nodes[tensor]
        insert_module(module, "probes", name, modules[name], (source,), _inserting_after(source))
    module.recompile()
    return modules


def insert_module(
    module: fx.GraphModule,
    parent: str,
    name: str,
    inserted: nn.Module,
    args: tuple[Any, ...],
    place: _Place,
) -> fx.Node:
    """Return a new call of a module in a graph, by a name and with the value of its first argument.

    Args:
        module: the graph.
        parent: path that the module gets a free place in; `block.1` and `block_1` must not collide.
        name: readable name of the call.
        inserted: the module.
        args: arguments of the call.
        place: where the call belongs.
    """
    path = f"{parent}.{G.free_name(getattr(module, parent, nn.Module()), name)}"
    module.add_submodule(path, inserted)
    with place:
        call = module.graph.call_module(path, args)
    call.meta[G.NAME], call.meta["val"] = name, G.value(args[0])
    return call


def _insertion_point(point: Point, source: fx.Node, nodes: dict[str, fx.Node]) -> _Place:
    """Activations right after their source (inputs after all inputs), constants at their use."""
    if point.kind is not Kind.ACTIVATION:
        return source.graph.inserting_before(nodes[point.edges[0].user])
    return _inserting_after(source)


def _inserting_after(source: fx.Node) -> _Place:
    graph = source.graph
    return graph.inserting_after(
        G.placeholders(graph)[-1] if source.op == "placeholder" else source
    )


def quant_points(module: nn.Module) -> dict[str, QuantPoint]:
    """Return the quant points of a prepared graph by their names in the plan."""
    return {m.point: m for m in module.modules() if isinstance(m, QuantPoint)}
