"""Small random networks and graphs: steps that run on whatever is before them."""

from dataclasses import replace
from random import Random

import torch

from tests.fuzz.graph import Constant, Graph, Node
from tests.fuzz.network import Fuzzed, Network, Step
from tests.fuzz.network_ops import OPS, Op

INPUTS = ((3, 8, 8), (4, 6, 5), (8,), (5, 6), (2, 4, 4, 4))
LAYERS = ("conv", "linear")
LARGEST = 6000  # elements of a value


def draw_network(random: Random, most: int = 8) -> Network:
    """Return a network of up to `most` steps that runs and gives finite numbers."""
    network = Network((random.choice(INPUTS),), (), (0,), seed=random.randrange(10))
    values = list(network.batch(2, 0))
    torch.manual_seed(network.seed)
    built = Fuzzed(network)
    for _ in range(most):
        step = _step(random, values, LAYERS if not network.steps else tuple(OPS))
        results = built.try_step(step, values)
        if results is not None and all(map(_fits, results)):
            built.add_step(step)
            network = replace(network, steps=(*network.steps, step), outputs=(len(values),))
            values.extend(results)
    return network


def _step(random: Random, values: list[torch.Tensor], names: tuple[str, ...]) -> Step:
    name = random.choice([n for n in names if _reads(OPS[n], values[-1])])
    alike = [i for i, v in enumerate(values) if v.shape == values[-1].shape]
    others = (random.choice(alike) for _ in range(OPS[name].arity - 1))
    options = {k: random.choice(v) for k, v in OPS[name].choices.items()}
    return Step(name, (len(values) - 1, *others), options)


def _reads(op: Op, value: torch.Tensor) -> bool:
    return op.dtype == "float" and value.dim() in op.ranks


def _fits(value: torch.Tensor) -> bool:
    return 0 < value.numel() <= LARGEST and bool(torch.isfinite(value).all())


UNARY = {
    **{
        name: {}
        for name in ("Relu", "Sigmoid", "Tanh", "Softplus", "Erf", "Neg", "Abs", "Softsign")
    },
    "LeakyRelu": {"alpha": 0.1},
    "Elu": {"alpha": 0.5},
    "HardSigmoid": {"alpha": 0.2},
    "Softmax": {"axis": 1},
    "Transpose": {"perm": (0, 1, 3, 2)},
    "MaxPool": {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
    "AveragePool": {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1},
    "LRN": {"size": 3},
}
"""Operators of one image that keep its size, with their attributes."""
BINARY = ("Add", "Sub", "Mul", "Min", "Max")


def draw_graph(random: Random, most: int = 8) -> Graph:
    """Return a graph of up to `most` operators behind a convolution; images are square."""
    channels = random.choice((1, 3, 4))
    constants = {"w": Constant("float32", (4, channels, 3, 3), None, random.randrange(100))}
    nodes = [Node("Conv", ("x", "w"), ("v0",), {"pads": (1, 1, 1, 1)})]
    for i in range(1, 1 + random.randrange(most)):
        last, result = f"v{i - 1}", (f"v{i}",)
        if random.randrange(3):
            name = random.choice(list(UNARY))
            nodes.append(Node(name, (last,), result, UNARY[name]))
            continue
        other = f"v{random.randrange(i)}"
        if random.randrange(2):
            constants[other := f"c{i}"] = Constant("float32", (4, 1, 1), None, i)
        nodes.append(Node(random.choice(BINARY), (last, other), result))
    inputs = (("x", "float32", ("N", channels, 6, 6)),)
    opset, seed = random.choice((13, 17, 21)), random.randrange(10)
    return Graph(opset, inputs, tuple(nodes), constants, nodes[-1].outputs, seed)
