"""Layers whose weights and biases a step may change, since no other node reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.layer_rows import as_matrix, has_bias, is_of_experts, is_product
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.quant_params import QuantParams

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution or linear layer whose constants a step may change.

    Attributes:
        node: its call in the graph.
        weight, bias: the float constants, on the device of the network; bias: None without one.
        weight_params, bias_params: parameters of their points; bias_params: None where the bias is
            float.
    """

    node: fx.Node
    weight: torch.Tensor
    weight_params: QuantParams
    bias: torch.Tensor | None
    bias_params: QuantParams | None

    @property
    def name(self) -> str:
        return G.name_of(self.node)

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as [groups, out, in]; see `as_matrix`."""
        return as_matrix(self.node, self.weight)

    @property
    def nearest(self) -> torch.Tensor:
        """The weight rounded to nearest, on the CPU."""
        return self.weight_params.round_trip(self.weight.cpu())

    def part(self, rows: slice | None) -> Layer:
        """Return the layer with some outputs alone, which has no groups; None: all."""
        if rows is None:
            return self
        params = self.weight_params
        if params.axis is not None:
            scale, zero = params.scale[rows], params.zero_point[rows]
            params = replace(params, scale=scale, zero_point=zero)
        return replace(self, weight=self.weight[rows], weight_params=params)

    def stored_bias(self, bias: torch.Tensor) -> torch.Tensor:
        """Return a bias as the file has it: rounded to its codes, within their range.

        It can be larger: where a layer scale makes the results tiny, the layer cannot compensate
        the error of the tensor that they are added to.
        """
        if self.bias_params is None:
            return bias
        limit = self.bias_params.scale * BIAS_LIMIT
        return self.bias_params.round_trip(bias.clamp(-limit, limit))

    def constant(self, at: int) -> fx.Node:
        """Return the node of a constant; `at` is 1 for the weight, 2 for the bias."""
        return G.source(self.node, at)

    def attribute(self, at: int) -> str:
        """Return the attribute of the module that holds the constant of `constant`."""
        return str(G.source(self.node, at).target)


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer, and the numbers of its values in an executor.

    Attributes:
        layer: the layer, with its constants.
        number: number of its result.
        operands: those of its input, its weight, and its bias or the experts of its rows.
        residual: that of the tensor that its result is added to and that is computed before it, or
            None.
    """

    layer: Layer
    number: int
    operands: Mapping[int, int]
    residual: int | None

    @classmethod
    def of(cls, layer: Layer, run: Executor, order: Callable[[int], int] = int) -> LayerCall:
        """Return the numbers of a layer. order: key of the order of values."""
        number = run.indices[layer.name]
        residual = residual_input(run, number)
        known = residual is not None and order(residual) < order(number)
        return cls(layer, number, dict(run.calls[number].operands), residual if known else None)

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of the values that its target looks at, besides its result."""
        return () if self.residual is None else (self.residual,)

    def target(self, exact: Values, coded: Values) -> torch.Tensor:
        """Return the target of the layer: its float result, plus the error of the tensor that it is
        added to; the error of one that is broadcast counts as zero.

        Args:
            exact, coded: values in the float and the quantized network.
        """
        result: torch.Tensor = exact[self.number]
        if self.residual is None or exact[self.residual].numel() != result.numel():
            return result
        error: torch.Tensor = exact[self.residual] - coded[self.residual]
        return result + error.reshape(result.shape)

    def experts(self, exact: Values, coded: Values) -> torch.Tensor | None:
        """Return the expert of each row; None for a layer without experts, and -1 where the float
        network has chosen another, whose result is no target. Arguments: see `target`."""
        if not is_of_experts(self.layer.node):
            return None
        ids: torch.Tensor = coded[self.operands[2]]
        return torch.where(exact[self.operands[2]] == ids, ids, -1)


def residual_input(run: Executor, number: int) -> int | None:
    """Return the number of the tensor that a result is added to, or None if it has another use.

    The layer can then compensate the error of that tensor, so that the sum equals the float
    network's. Quantization points and reshapes in between are skipped.
    """
    while len(run.calls[number].users) == 1 and number not in run.outputs:
        reader = run.calls[run.calls[number].users[0]]
        if reader.point is not None or reader.function is aten.reshape.default:
            number = reader.index
            continue
        others = [i for _, i in reader.operands if i != number]
        plain = reader.function is aten.add.Tensor and not reader.keywords
        return others[0] if plain and len(others) == 1 else None
    return None


def exclusive_layers(state: ConversionState) -> dict[str, Layer]:
    """Return the layers with quantized weights whose constants no other node reads, by name."""
    assert state.parameters is not None
    module, params = state.graph.module, state.parameters.params
    reads, layers = G.attribute_reads(module.graph), dict[str, Layer]()
    for node in filter(is_product, G.calls(module.graph)):
        name = G.name_of(node)
        constants = [G.source(node, at) for at in (1, 2)[: 1 + has_bias(node)]]
        if f"{name}.weight" not in params or any(reads[str(c.target)] != 1 for c in constants):
            continue
        weight, *bias = (G.tensor(module, each).detach() for each in constants)
        layers[name] = Layer(
            node,
            weight,
            params[f"{name}.weight"],
            bias[0] if bias else None,
            params.get(f"{name}.bias"),
        )
    return layers


def with_constants(state: ConversionState, values: Mapping[str, torch.Tensor]) -> ConversionState:
    """Return the state with new constants, by attribute of the module.

    Raises:
        KeyError: no such attribute.
        ValueError: one has another shape.
    """
    module = G.clone(state.graph.module)
    held = {str(n.target): n for n in module.graph.nodes if n.op == "get_attr"}
    for name, value in values.items():
        if G.tensor(module, held[name]).shape != value.shape:
            raise ValueError(f"'{name}' has another shape")
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and str(node.target) in values:
            G.set_tensor(module, node, values[str(node.target)])
    return replace(state, graph=replace(state.graph, module=module))
