"""The network of a quantized model with the weights from before they were rounded.

Weight rounding (GPTQ), learned scales and training write the rounded weights into the graph: their
points change nothing any more, and a layer would look as if it made no error. The float model with
the recorded changes has the weights from before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import replay_changes
from qtool.algorithms.registry import STEPS
from qtool.core import graph as G
from qtool.core.graph.executor import Executor
from qtool.planning.fake_quantize import insert_points, quant_points

if TYPE_CHECKING:
    from qtool.conversion.quantized import Quantized


def unrounded_executor(model: Quantized) -> Executor:
    """Return an executor whose points on weights, if off, give the weights from before rounding.

    If on, they give the codes of the quantized model.

    Raises:
        VerificationError: a change cannot be made again.
    """
    macs = {d.node: d.macs for d in model.plan.nodes}
    executor = Executor(replace(model.graph, module=_unrounded_module(model)), macs)
    coded = Executor(replace(model.graph, module=model.module))
    executor.quantized_constants = {
        executor.indices[name]: coded.quantized_constants[index]
        for name, index in coded.indices.items()
        if index in coded.quantized_constants
    }
    return executor


def _unrounded_module(model: Quantized) -> fx.GraphModule:
    plan = model.plan
    start = ConversionState.start(
        model.captured, model.captured.plan(plan.target, plan.observer, plan.recipe)
    )
    graph = replay_changes(STEPS, start, model.changes).graph
    module = insert_points(G.clone_with_parameters(graph.module), plan)
    for name, point in quant_points(module).items():
        point.set_params(model.parameters[name])
    return module
