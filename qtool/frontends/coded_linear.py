"""Linear layers whose weights are codes of a quantized checkpoint, and the plan that keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph import torch_ops
from qtool.core.number_texts import quantity
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import Argument, Omission
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.planning.recipe import DEFAULT_ACCURACY, Recipe, Rule

_MODES = {2: "weight-only-int2", 4: "weight-only-int4", 8: "weight-only"}
_DYNAMIC, _WEIGHTS = "dynamic", "weight-only"


STACKED = "qtool_codes"
"""Attribute of a mixture of experts: parameter -> its `WeightCodes`."""


@dataclass(frozen=True, eq=False)
class WeightCodes:
    """How a checkpoint quantized a weight.

    Attributes:
        params: parameters of its codes.
        dynamic: whether the layer computes on int8 inputs, with a scale for each row of a batch.
    """

    params: QuantParams
    dynamic: bool = False

    @property
    def mode(self) -> str:
        """The mode of a conversion with such layers."""
        return _DYNAMIC if self.dynamic else _MODES[self.params.qtype.bits]

    def rule(self, layer: str, mode: str) -> Rule:
        """Return the rule for a layer with this weight. mode: that of the recipe."""
        if self.dynamic and mode == _DYNAMIC:
            return Rule(layer, scheme=_DYNAMIC)
        block = self.params.block or "channel"
        return Rule(layer, scheme="int8-weights", weights=self.params.qtype.name, block=block)


class CodedLinear(nn.Linear):
    """A linear layer with the dequantized weights of a checkpoint.

    Attributes:
        codes: how they are quantized.
        order: input of the layer for each column of its weight, int64 [inputs]; None: that itself.
    """

    order: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        bias: nn.Parameter | None,
        codes: WeightCodes,
        order: torch.Tensor | None,
    ) -> None:
        """
        Args:
            weight: dequantized, float32 [outputs, inputs].
            bias: float32 [outputs].
            codes, order: as the attributes.
        """
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", bias)
        self.codes = codes
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if self.order is None else x.index_select(-1, self.order))


def codes_of(model: nn.Module) -> Mapping[str, WeightCodes]:
    """Return parameter -> codes of the weights that a model has as codes."""
    layers = ((n, m) for n, m in model.named_modules() if isinstance(m, CodedLinear))
    stacks = ((n, m.__dict__.get(STACKED, {})) for n, m in model.named_modules())
    experts = {f"{n}.{part}": own for n, codes in stacks for part, own in codes.items()}
    return experts | {f"{name}.weight": layer.codes for name, layer in layers}


def notes_on_codes(codes: Mapping[str, WeightCodes]) -> tuple[str, ...]:
    """Return a note for the user, of a model with codes."""
    layers = quantity(len(codes), "layer")
    note = f"the weights of {layers} have the codes of the checkpoint: nothing is rounded"
    return (note,) if codes else ()


def recipe_of_codes(codes: Mapping[str, WeightCodes], graph: fx.Graph, *options: Any) -> Recipe:
    """Return the recipe that keeps all codes, with no step; what has none stays in float.

    Args:
        codes: those of the model.
        graph: its graph in the forms of the target.
        options: as for `Recipe.of`; rules may quantize what is float.

    Raises:
        PlanError: an option would round the weights again.
    """
    modes = [each.mode for each in codes.values()]
    mode = max(sorted(set(modes)), key=modes.count)
    wanted = Recipe.of(*options, default_mode=mode)
    again = "the weights of this checkpoint are quantized already, and keep their codes"
    if wanted.mode != mode and (mode, wanted.mode) != (_DYNAMIC, _WEIGHTS):
        raise PlanError(f"{again}: its mode is {mode}", Argument("--mode", mode))
    if wanted.recover:
        raise PlanError(f"{again}: no step changes them", Omission("--recover"))
    if wanted.accuracy not in (DEFAULT_ACCURACY, "fast"):
        raise PlanError(f"{again}: no step changes them", Omission("--accuracy"))
    own = (codes[tensor].rule(layer, wanted.mode) for layer, tensor in _layers(codes, graph))
    rules = (Rule("*", scheme="float"), *own, *wanted.rules)
    return replace(wanted, rules=rules, recover=())


def params_of_codes(
    codes: Mapping[str, WeightCodes], graph: fx.Graph, plan: QuantPlan
) -> Mapping[str, QuantParams]:
    """Return point -> parameters of the weights that are codes.

    Raises:
        PlanError: the plan has another form for one of them.
    """
    layers, points = dict(_layers(codes, graph)), {}
    if lost := sorted(codes.keys() - layers.values()):
        raise PlanError(f"the weight '{lost[0]}' is no linear layer's in the graph of the model")
    for layer, tensor in layers.items():
        own, point = codes[tensor].params, f"{layer}.weight"
        decision = plan.decision(layer)
        form = (Execution.WEIGHTS, Execution.DYNAMIC)
        if decision is None or decision.execution not in form or point not in plan:
            why = "" if decision is None else f" ({decision.reason})"
            raise PlanError(
                f"'{layer}' has codes of the checkpoint, {_describe(own)}, and this plan leaves "
                f"them{why}"
            )
        spec = plan.point(point).spec
        same = plan.point(point).kind is Kind.WEIGHT and (
            *(getattr(spec, "block", None), getattr(spec, "symmetric", None)),
            getattr(getattr(spec, "qtype", None), "bits", None),
        ) == (own.block, own.qtype.signed, own.qtype.bits)
        if not same:
            raise PlanError(f"'{layer}' keeps the codes of the checkpoint: {_describe(own)}")
        points[point] = own
    return points


def check_unchanged(
    codes: Mapping[str, QuantParams], params: Mapping[str, QuantParams], target: str
) -> None:
    """Check that solved parameters are those of the checkpoint.

    Args:
        codes: point -> parameters of the checkpoint.
        params: those that were solved.
        target: name of the target.

    Raises:
        PlanError: one is not.
    """
    for name, own in codes.items():
        if not torch.equal(own.scale, params[name].scale):
            raise PlanError(
                f"{name}: on CPUs without VNNI sums of products of these int8 codes saturate, and "
                f"{target} would widen their scale",
                Argument("--target", "onnxruntime-x86-vnni"),
                Argument("--mode", _WEIGHTS, "keep the inputs in float with {}"),
            )


def _layers(codes: Mapping[str, WeightCodes], graph: fx.Graph) -> Iterator[tuple[str, str]]:
    """Yield the linear layers and experts that read these weights: node, parameter."""
    for node in G.calls(graph):
        name = G.name_of(node)
        linear = node.target is torch.ops.aten.linear.default
        tensor = str(G.source(node, 1).target) if linear else name  # experts have that of theirs
        if (linear or node.target is torch_ops.expert_linear) and tensor in codes:
            yield name, tensor


def _describe(params: QuantParams) -> str:
    scales = "output" if params.block is None else f"{params.block} weights"
    return f"{params.qtype.name}, a scale for each {scales}"
