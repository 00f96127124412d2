"""Many small networks in one file: each an arm of its own from the input to an output of its own.

Converting costs about the same for one arm as for ten, so arms of one input shape travel together.
What the runtime executes for an arm is what its output depends on.
"""

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch

from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.session import optimised_graph, run, session
from qtool.planning.plan import Decision
from tests.backends.onnx.export.networks import computing
from tests.models.arms import Arms
from tests.operators.table import CASES

PER_FILE = 10
OF_TORCH = ("adaptive_unequal", "variance")
"""Cases whose file torch.onnx writes, which takes three times as long."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Arm:
    """What became of one network.

    real: outputs of the user's module. simulated: of fake quantization. runtime, engine: of the
    file in ONNX Runtime and in the integer engine. kernels: see `Case`. executed, nodes: all
    operators of the runtime's graph, and of the file.
    """

    decisions: tuple[Decision, ...]
    kernels: Counter[str]
    executed: Counter[str]
    nodes: Counter[str]
    real: Array
    simulated: Array
    runtime: Array
    engine: Array


def arm_of(name: str) -> Arm:
    """The arm of a case, converted with its neighbours through the public API."""
    alike = [n for n in CASES if _kind(n) == _kind(name)]
    at = alike.index(name) // PER_FILE * PER_FILE
    return _converted(tuple(alike[at : at + PER_FILE]))[name]


def _kind(name: str) -> tuple[object, ...]:
    return CASES[name].shapes, CASES[name].indices, name in OF_TORCH


@functools.cache
def _converted(names: tuple[str, ...]) -> dict[str, Arm]:
    first = CASES[names[0]]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Arms({n: CASES[n].make() for n in names}).eval()
        inputs = tuple(
            torch.randint(0, 10, s) if first.indices else torch.randn(s) for s in first.shapes
        )
    slow = {"slow_layers": "integer"}  # what is fast is another question
    model = quantize(network, [inputs], observer="minmax", recipe=slow, accuracy="fast")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.export(path)
        file, executed = onnx.load(path), optimised_graph(path)
        outputs = run(session(path), [x.numpy() for x in inputs])
    program = lower(file)
    codes = program(*inputs)
    with torch.no_grad():
        real, simulated = network(*inputs), model(*inputs)
    made: dict[str, Arm] = {}
    for i, name in enumerate(names):
        params = program.params.get(program.outputs[i])
        engine = codes[i] if params is None else params.dequantize(codes[i])
        made[name] = Arm(
            tuple(d for d in model.plan.nodes if d.node.startswith(f"{name}.")),
            computing(_needed_for(executed, f"{name}_out")),
            Counter(n.op_type for n in _needed_for(executed, f"{name}_out").node),
            Counter(n.op_type for n in _needed_for(file, f"{name}_out").node),
            real[f"{name}_out"].numpy(),
            simulated[f"{name}_out"].numpy(),
            outputs[i],
            engine.numpy(),
        )
    return made


def _needed_for(model: onnx.ModelProto, output: str) -> onnx.GraphProto:
    """The part of a graph that an output depends on."""
    needed, kept = {output}, onnx.GraphProto()
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.node.insert(0, node)
    kept.initializer.extend(model.graph.initializer)
    return kept
