"""A fake-quantized model and the float model that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import VerificationError, describe
from qtool.core.memory import trim_memory
from qtool.core.quant_params import QuantParams
from qtool.planning.plan import QuantPlan

_LARGE = 1 << 24  # bytes of weights from which on memory is trimmed between checks


@dataclass(frozen=True, eq=False)
class FakeQuantized:
    """A model as fake quantization simulates it.

    Attributes:
        graph: the float graph that was planned.
        module: `graph` with quant points.
        reference: the captured float graph, which errors are measured against.
        plan: plan of `graph`.
        parameters: quantization point -> parameters.
    """

    graph: G.FloatGraph
    module: fx.GraphModule
    reference: G.FloatGraph
    plan: QuantPlan
    parameters: Mapping[str, QuantParams]

    @property
    def graph_with_points(self) -> G.FloatGraph:
        return replace(self.graph, module=self.module)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample."""
        return sum(d.macs for d in self.plan.nodes)

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device of the parameters."""
        return _to_device(self.module, batch)

    def run(self, batch: Batch) -> list[Any]:
        """Return the outputs of fake quantization as arrays."""
        return _run(self.module, batch)

    def run_float(self, batch: Batch) -> list[Any]:
        """Return the outputs of the float model as arrays."""
        return _run(self.reference.module, batch)

    def output_scales(self) -> Sequence[float | None]:
        """Return the quantization step of each output, None where it is float."""
        scales: list[float | None] = []
        for node in G.output_nodes(self.graph.graph):
            params = self.parameters.get(G.name_of(node))
            per_tensor = (
                params is not None and params.axis is None
            )  # else a weight that is returned
            scales.append(float(params.scale) if params is not None and per_tensor else None)
        return scales

    def trim_memory(self) -> None:
        """Return freed memory to the system, for models large enough to be worth the time."""
        if sum(p.nbytes for p in self.reference.module.parameters()) >= _LARGE:
            trim_memory()


def _run(module: nn.Module, batch: Batch) -> list[Any]:
    inputs = _to_device(module, batch)
    try:
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*inputs.args, **inputs.kwargs))
            return [t.detach().cpu().numpy() for t in outputs]  # an output may be a parameter
    except RuntimeError as error:  # sizes that depend on values
        raise VerificationError(f"the model does not run in codes: {describe(error)}") from error


def _to_device(module: nn.Module, batch: Batch) -> Batch:
    return batch.to(next((p.device for p in module.parameters()), torch.device("cpu")))
