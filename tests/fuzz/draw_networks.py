"""How random networks are drawn: step by step, each tried on data before it is taken."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch

from tests.fuzz.network import FORMS, SIZES, Fuzzed, Network, Step
from tests.fuzz.network_layers import Op
from tests.fuzz.network_ops import OPS

LARGEST = 6000  # elements of a value
INPUTS: tuple[tuple[int | str, ...], ...] = (
    *((3, 8, 8), (1, 7, 9), (4, 6, 5), (8,), (5, 6), (4, 12), (2, 4, 4, 4), (6, "ids"), (16,)),
    *((1, 5, 5), (1,), (3, 1, 1), (1, 12), (2, 1, 6)),
)
NAMES = (
    *("",) * 6,
    *("output", "input", "x", "weight", "層", "a b", "conv", "Add", "0", "args_0", "class"),
)
KEYS = ("output", "logits", "x", "0", "", "a.b", "層", "scale", "input")
WEIGHTS = ("plain",) * 5 + ("uneven", "zero channel", "zero", "tiny")
SETTINGS: dict[str, tuple[str, ...]] = {
    "target": ("",) * 14
    + ("openvino", "onnxruntime-arm", "onnxruntime", "tflite", "qnn", "tensorrt"),
    "mode": ("",) * 17 + ("dynamic", "weight-only", "weight-only-int4"),
    "observer": ("",) * 4 + ("minmax", "mse", "moving_average", "entropy", "laplace"),
    "accuracy": ("fast",) * 5 + ("",) * 5,
    "format": ("",) * 11 + ("qoperator",),
}
LAYERS = ("conv", "linear", "look up")
COMMON = ("conv", "linear", "conv", "linear", "batch norm", "ReLU", "add", "cat", "max pool")


def draw_network(random: Random, most: int = 12) -> Network:
    """A network of up to `most` steps that runs, and gives finite numbers."""
    inputs = tuple(random.choice(INPUTS) for _ in range(random.choice((1, 1, 1, 2, 3))))
    size = random.choice((*[1.0] * 4, *SIZES))
    network = Network(inputs, (), (0,), seed=random.randrange(10), size=size)
    values = list(network.batch(2, 0))
    torch.manual_seed(network.seed)  # what is drawn depends on nothing else
    built = Fuzzed(network)
    for _ in range(1 + random.randrange(most)):
        step = _step(random, values, network)  # nearly always beginning with a layer
        taken = built.try_step(step, values)
        if taken is not None and all(map(_fits, taken)):
            built.add_step(step)
            network = replace(network, steps=(*network.steps, step))
            values.extend(taken)
    return _finished(random, network, len(values))


def _fits(value: torch.Tensor) -> bool:
    whole = 0 < value.numel() <= LARGEST and 2 <= value.dim() <= 5
    return whole and bool(torch.isfinite(value).all())


def _finished(random: Random, network: Network, values: int) -> Network:
    form = random.choice(("tensor", *FORMS))
    number = 1 if form == "tensor" else 1 + random.randrange(3)
    made = list(range(len(network.inputs), values)) or [0]
    outputs = (made[-1], *(random.choice(made) for _ in range(number - 1)))
    keys = tuple(random.sample(KEYS, number))
    settings = {k: random.choice(v) for k, v in SETTINGS.items()}
    if settings["target"] not in ("", "onnxruntime-arm", "onnxruntime"):
        del settings["format"]  # only ONNX Runtime has operators of its own
    given = {k: v for k, v in settings.items() if v}
    weights = random.choice(WEIGHTS)
    return replace(network, outputs=outputs, form=form, keys=keys, weights=weights, settings=given)


def _step(random: Random, values: Sequence[torch.Tensor], network: Network) -> Step:
    names = [n for n, op in OPS.items() if any(_reads(op, v) for v in values)]
    often = [n for n in (COMMON if network.steps else LAYERS) if n in names]
    name = random.choice(often if often and random.randrange(2 if network.steps else 8) else names)
    op = OPS[name]
    fitting = [i for i, v in enumerate(values) if _reads(op, v)]
    of = [fitting[-1] if random.randrange(3) else random.choice(fitting)]
    same = [i for i in fitting if values[i].shape == values[of[0]].shape]
    of += [
        random.choice(same if op.alike and random.randrange(4) else fitting)
        for _ in range(op.arity - 1)
    ]
    layers = [i for i, s in enumerate(network.steps) if s.op == name and s.again is None]
    if layers and random.randrange(4) == 0:
        return Step(name, tuple(of), again=random.choice(layers))
    options = {k: random.choice(v) for k, v in op.choices.items()}
    label = random.choice(NAMES)
    taken = any(s.name == label for s in network.steps)
    return Step(name, tuple(of), options, "" if taken else label)


def _reads(op: Op, value: torch.Tensor) -> bool:
    if op.dtype == "ids":
        looked_up = value.dtype == torch.int64 and 0 <= int(value.min()) <= int(value.max()) < 7
        return looked_up and value.dim() in op.ranks
    return value.dtype == torch.float32 and value.dim() in op.ranks
