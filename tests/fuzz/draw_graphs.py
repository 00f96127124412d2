"""How random ONNX graphs are drawn: node by node, each run in ONNX Runtime before it is taken."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.fuzz.graph import Graph, Node
from tests.fuzz.graph_maker import Drawn, Maker
from tests.fuzz.graph_ops import ROWS

LARGEST = 20000  # elements of a value
OPSETS = (13, 14, 15, 16, 17, 17, 18, 19, 20, 21)
INPUTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    *(("float32", (3, 8, 8)), ("float32", (4, 6, 5)), ("float32", (8,)), ("float32", (5, 6))),
    *(("float32", (4, 12)), ("float32", (2, 4, 4, 4)), ("int64", (6,)), ("float32", (1, 7, 9))),
    *(("float64", (4,)), ("bool", (5,)), ("float16", (4,)), ("float32", ()), ("float32", (1,))),
    *(("float32", (3, 1, 1)), ("float32", (1, 1, 6, 1)), ("float32", (1, 12)), ("float32", (4, 0))),
)
LEADS = ("N",) * 6 + (16, 1)  # an open batch, or a fixed one
USUAL = 6  # of the inputs above
NAMES = ("x", "input", "output", "y", "層", "a b", "0", "conv/1", "a.b", "X", "class")
SETTINGS: dict[str, tuple[str, ...]] = {
    "target": ("",) * 18 + ("openvino", "onnxruntime-arm", "qnn"),
    "mode": ("",) * 18 + ("dynamic", "weight-only"),
    "accuracy": ("fast",) * 7 + ("",) * 8,
}
LAYERS = ("Conv", "MatMul", "Gemm", "look up")
BROKEN = 40  # one graph in so many has an attribute that nobody knows

Arrays = dict[str, np.ndarray[Any, Any]]


def opened(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def draw_graph(random: Random, most: int = 12) -> Graph:
    """A graph of up to `most` nodes that the runtime runs, as a rule."""
    count = random.choice((1, 1, 1, 2, 3))
    chosen = [
        random.choice(INPUTS[:USUAL] if random.randrange(5) else INPUTS) for _ in range(count)
    ]
    names = random.sample(NAMES, count)
    lead = random.choice(LEADS)
    inputs = tuple((n, d, (lead, *s)) for n, (d, s) in zip(names, chosen, strict=True))
    graph = Graph(random.choice(OPSETS), inputs, (), {}, (), random.randrange(10))
    graph = graph if lead == "N" else replace(graph, batch=int(lead))
    values = graph.data(graph.batch, 0)
    for _ in range(1 + random.randrange(most)):
        graph, values = _grown(random, graph, values)
    return _finished(random, graph, values)


def _finished(random: Random, graph: Graph, values: Arrays) -> Graph:
    made = [n for n in values if all(n != i[0] for i in graph.inputs)]
    outputs = dict.fromkeys(
        [made[-1], *(random.choice(made) for _ in range(random.choice((0, 0, 1, 2))))]
        if made
        else [graph.inputs[0][0]]
    )
    settings = {k: random.choice(v) for k, v in SETTINGS.items()}
    graph = replace(
        graph, outputs=tuple(outputs), settings={k: v for k, v in settings.items() if v}
    )
    if graph.nodes and random.randrange(BROKEN) == 0:
        at = random.randrange(len(graph.nodes))
        node = graph.nodes[at]
        odd = replace(node, attributes={**node.attributes, "stridez": [2, 2]})
        graph = replace(graph, nodes=(*graph.nodes[:at], odd, *graph.nodes[at + 1 :]))
    return graph


def _grown(random: Random, graph: Graph, values: Arrays) -> tuple[Graph, Arrays]:
    """With one more node, where it can be drawn."""
    layers = not graph.nodes and random.randrange(6)  # nearly always beginning with a layer
    rows = [n for n, r in ROWS.items() if _known(n, graph.opset, r.domain)]
    rows = [n for n in rows if n in LAYERS] if layers else rows
    op = rows[_index(random, [ROWS[n].often for n in rows])]
    row = ROWS[op]
    fitting = [n for n, v in values.items() if v.ndim in row.ranks and str(v.dtype) in row.dtypes]
    if not fitting:
        return graph, values
    x = fitting[-1] if random.randrange(3) else random.choice(fitting)
    real = "Gather" if op == "look up" else op
    maker = Maker(random, values, graph.opset, real)
    try:
        drawn = row.draw(maker, x)
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return graph, values
    node = _named(random, graph, real, drawn, row.domain, values)
    grown = replace(
        graph, nodes=(*graph.nodes, node), constants={**graph.constants, **maker.constants}
    )
    found = _values(grown, node, values)
    return (graph, values) if found is None else (grown, {**values, **found})


def _index(random: Random, weights: list[int]) -> int:
    at = random.randrange(sum(weights))
    for i, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return i
    raise AssertionError


def _known(op: str, opset: int, domain: str) -> bool:
    return bool(domain) or op == "look up" or onnx.defs.has(op, opset)


def _named(
    random: Random, graph: Graph, op: str, drawn: Drawn, domain: str, values: Arrays
) -> Node:
    number = len(graph.nodes)
    free = [n for n in NAMES if n not in values]
    outputs = [f"v{number}.{i}" for i in range(drawn.outputs)]
    if free and random.randrange(8) == 0:
        outputs[0] = random.choice(free)
    name = random.choice(("", f"{op}_{number}", outputs[0], "same" if number == 0 else ""))
    return Node(op, drawn.inputs, tuple(outputs), drawn.attributes, domain, name)


def _values(graph: Graph, node: Node, values: Arrays) -> Arrays | None:
    """What the runtime gives for a node; None where it gives nothing of use."""
    inputs = tuple((n, str(v.dtype), tuple(v.shape)) for n, v in values.items())
    alone = replace(graph, inputs=inputs, nodes=(node,), outputs=node.outputs)
    try:
        session = opened(alone.model())
        wanted = {i.name for i in session.get_inputs()}
        found = session.run(None, {k: v for k, v in values.items() if k in wanted})
    except Exception:  # noqa: BLE001  # whatever the runtime raises: another node is drawn
        return None
    arrays = dict(zip(node.outputs, found, strict=True))
    for array in arrays.values():
        fits = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
        if not fits or not 0 < array.size <= LARGEST or array.ndim > 5:
            return None
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return None
    return arrays
