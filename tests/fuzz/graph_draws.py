"""How operators are given attributes and inputs: more than is valid.

What ONNX Runtime does not run on data is drawn again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.graph import BOOL, FLOAT, INT64
from tests.fuzz.graph_maker import Array, Drawn, Maker, Row

FLOATS = ("float32", "float32", "float64", "float16")
NUMBERS = ("float32", "float64", "int64", "int32")
ALL = (*NUMBERS, "bool", "float16", "uint8")
MAPS = (3, 4, 5)


def unary(dtypes: tuple[str, ...] = ("float32",), domain: str = "", **pools: Sequence[Any]) -> Row:
    return Row(lambda m, x: Drawn((x,), m.pick(**pools)), dtypes=dtypes, domain=domain)


def binary(dtypes: tuple[str, ...] = NUMBERS, often: int = 1, **pools: Sequence[Any]) -> Row:
    def draw(m: Maker, x: str) -> Drawn:
        pair = [x, m.other(x)]
        if m.random.randrange(3) == 0:
            pair.reverse()
        return Drawn(tuple(pair), m.pick(**pools))

    return Row(draw, dtypes=dtypes, often=often)


def many(dtypes: tuple[str, ...] = NUMBERS) -> Row:
    def draw(m: Maker, x: str) -> Drawn:
        return Drawn((x, *(m.other(x) for _ in range(m.random.randrange(3)))), {})

    return Row(draw, dtypes=dtypes)


def window(m: Maker, rank: int) -> dict[str, Any]:
    """Strides, dilations, and pads or automatic ones."""
    r = m.random
    given: dict[str, Any] = m.pick(
        strides=[[s] * rank for s in (1, 2, 3)] + [[2, 1, 1][:rank]],
        dilations=[[1] * rank, [2] * rank],
    )
    how = r.randrange(4)
    if how == 0:
        given["auto_pad"] = r.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif how < 3:
        given["pads"] = (
            [r.choice((0, 1, 1, 2)) for _ in range(2 * rank)] if how == 1 else [1] * 2 * rank
        )
    return given


def conv(m: Maker, x: str) -> Drawn:
    channels, r = m.values[x].shape[1], m.random
    rank = m.values[x].ndim - 2
    group = r.choice([1, 1, *(g for g in (2, 3, channels) if channels % g == 0)])
    kernel = [r.choice((1, 2, 3)) for _ in range(rank)]
    attributes = window(m, rank)
    if r.randrange(2):
        attributes["kernel_shape"] = kernel
    if group != 1 or r.randrange(2):
        attributes["group"] = group
    out = group * r.choice((1, 2, 3, 4))
    if m.op == "ConvTranspose":
        sizes, bias = (channels, out // group, *kernel), out
        attributes |= m.pick(output_padding=[[0] * rank, [1] * rank])
    else:
        sizes, bias = (out, channels // group, *kernel), out
    inputs = (x, m.weights(*sizes), *((m.weights(bias),) if r.randrange(3) else ()))
    return Drawn(inputs, attributes)


def pool(**pools: Sequence[Any]) -> Row:
    def draw(m: Maker, x: str) -> Drawn:
        rank = m.values[x].ndim - 2
        attributes = window(m, rank) | m.pick(**pools)
        attributes["kernel_shape"] = [m.random.choice((1, 2, 3)) for _ in range(rank)]
        if not m.has("dilations"):
            attributes.pop("dilations", None)
        return Drawn((x,), attributes, 2 if m.op == "MaxPool" and m.random.randrange(6) == 0 else 1)

    return Row(draw, MAPS, often=2)


def gemm(m: Maker, x: str) -> Drawn:
    attributes = m.pick(alpha=(1.0, 0.5), beta=(1.0, 2.0), transB=(0, 1), transA=(0, 0, 0, 1))
    size, out = m.values[x].shape[1 - attributes.get("transA", 0)], m.random.choice((1, 3, 5))
    weight = m.weights(*((out, size) if attributes.get("transB") else (size, out)))
    biases = ((), (m.weights(out),), (m.weights(1, out),), (m.weights(1),))
    return Drawn((x, weight, *m.random.choice(biases)), attributes)


def matmul(m: Maker, x: str) -> Drawn:
    shape, out = m.values[x].shape, m.random.choice((1, 3, 5))
    how = m.random.randrange(4)
    if how == 0 and len(shape) > 2:
        return Drawn((x, m.weights(*shape[1:-2], shape[-1], out)), {})
    if how == 1:
        fitting = [n for n, v in m.values.items() if v.ndim > 1 and v.shape[-2:-1] == shape[-1:]]
        if fitting:
            return Drawn((x, m.random.choice(fitting)), {})
    return Drawn((x, m.weights(shape[-1], *((out,) if how else ()))), {})


def norm(m: Maker, x: str) -> Drawn:
    shape = m.values[x].shape
    if m.op == "LayerNormalization":
        axis = m.axis(x)
        sizes = list(shape[axis % len(shape) :])
        bias = (m.weights(*sizes),) if m.random.randrange(2) else ()
        pools = {"epsilon": (1e-5, 1e-3), "stash_type": (1,)}
        return Drawn((x, m.weights(*sizes), *bias), {"axis": axis, **m.pick(**pools)})
    channels = shape[1]
    if m.op == "GroupNormalization":
        groups = m.random.choice([g for g in (1, 2, channels) if channels % g == 0])
        count = channels if m.opset >= 21 else groups
        return Drawn((x, m.weights(count), m.weights(count)), {"num_groups": groups})
    inputs = (x, m.weights(channels), m.weights(channels))
    if m.op == "BatchNormalization":
        inputs = (*inputs, m.weights(channels), m.weights(channels, low=0.1))
        return Drawn(inputs, m.pick(epsilon=(1e-5, 1e-2), momentum=(0.9, 0.5)))
    return Drawn(inputs, m.pick(epsilon=(1e-5, 1e-2)))


def reduction(m: Maker, x: str) -> Drawn:
    axes, attributes = m.axes(x), m.pick(keepdims=(0, 1), noop_with_empty_axes=(0, 0, 1))
    if m.random.randrange(6) == 0:
        return Drawn((x,), attributes)
    if m.has("axes"):
        return Drawn((x,), attributes | {"axes": axes})
    return Drawn((x, m.constant(axes)), attributes)


def axes_given(m: Maker, x: str) -> Drawn:
    """Squeeze and Unsqueeze."""
    shape = m.values[x].shape
    if m.op == "Unsqueeze":
        return Drawn((x, m.constant([m.random.choice((1, -1, 2))])), {})
    ones = [a for a, s in enumerate(shape) if s == 1 and a]
    return Drawn((x,) if m.random.randrange(6) == 0 else (x, m.constant(ones)), {})


def reshape(m: Maker, x: str) -> Drawn:
    shape = m.values[x].shape
    size = int(np.prod(shape[1:]))
    half = [0, 2, -1] if size % 2 == 0 else [0, 1, -1]
    wanted = m.random.choice(
        ([0, -1], [-1, size], half, [*([0] * (len(shape) - 1)), 1, -1], [0, *shape[1:][::-1]])
    )
    return Drawn((x, m.constant(wanted)), m.pick(allowzero=(0,)))


def split(m: Maker, x: str) -> Drawn:
    axis = m.axis(x)
    size, count = m.values[x].shape[axis], m.random.choice((2, 3))
    how = m.random.randrange(2)
    if how == 0 and size > 1:
        return Drawn((x, m.constant([1, size - 1])), {"axis": axis}, 2)
    return Drawn(
        (x,), {"axis": axis, **({"num_outputs": count} if m.has("num_outputs") else {})}, count
    )


def cut(m: Maker, x: str) -> Drawn:
    axes, r = m.axes(x), m.random
    starts = [r.choice((0, 1, -2, -1)) for _ in axes]
    ends = [r.choice((2, -1, 2**31 - 1, 2**63 - 1, 100)) for _ in axes]
    inputs = [x, m.constant(starts), m.constant(ends), m.constant(axes)]
    if r.randrange(2):
        inputs.append(m.constant([r.choice((1, 1, 2, -1)) for _ in axes]))
    return Drawn(tuple(inputs), {})


def gather(m: Maker, x: str) -> Drawn:
    axis = m.axis(x)
    size = m.values[x].shape[axis]
    index = m.random.choice(([0], [size - 1, 0], [-1], [[0, -1], [0, 0]], 0, -1))
    kind = m.random.choice(("int64", "int32"))
    if m.op == "GatherElements":
        shape = [
            max(1, s - (i == axis % len(m.values[x].shape)))
            for i, s in enumerate(m.values[x].shape)
        ]
        return Drawn((x, m.constant(np.zeros(shape, int), kind)), {"axis": axis})
    return Drawn((x, m.constant(index, kind)), {"axis": axis})


def looked_up(m: Maker, x: str) -> Drawn:
    return Drawn((m.weights(4, m.random.choice((3, 6))), x), m.pick(axis=(0,)))


def pad(m: Maker, x: str) -> Drawn:
    rank, r = m.values[x].ndim, m.random
    pads = [0 if i % rank == 0 or r.randrange(2) else r.choice((1, 2, -1)) for i in range(2 * rank)]
    inputs = [x, m.constant(pads)]
    if r.randrange(3) == 0:
        inputs.append(m.constant(r.choice((0.0, 1.5, -1.0)), "float32"))
    modes = ("constant", "reflect", "edge", *(("wrap",) if m.opset >= 19 else ()))
    return Drawn(tuple(inputs), m.pick(mode=modes))


def resize(m: Maker, x: str) -> Drawn:
    value, r = m.values[x], m.random
    rank = value.ndim - 2
    attributes = m.pick(
        mode=("nearest", "linear", "cubic"),
        coordinate_transformation_mode=(
            "half_pixel",
            "asymmetric",
            "align_corners",
            "pytorch_half_pixel",
            "half_pixel_symmetric",
        ),
        nearest_mode=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        antialias=(0, 0, 1),
        exclude_outside=(0, 1),
        cubic_coeff_a=(-0.75, -0.5),
        keep_aspect_ratio_policy=("stretch", "not_larger"),
        extrapolation_value=(0.0, 1.0),
    )
    lead: list[Any] = list(value.shape[:2])
    if r.randrange(2):
        scales = [1.0, 1.0, *(r.choice((2.0, 1.5, 0.5, 3.0)) for _ in range(rank))]
        return Drawn((x, "", m.constant(scales, "float32")), attributes)
    if m.has("axes") and r.randrange(2):
        attributes["axes"] = list(range(2, 2 + rank))
        lead = []
    return Drawn(
        (x, "", "", m.constant([*lead, *(r.choice((1, 3, 7)) for _ in range(rank))])), attributes
    )


def clip(m: Maker, x: str) -> Drawn:
    kind = str(m.values[x].dtype)
    low, high = m.random.choice(((0, 6), (-1, 1), (0, None), (None, 2), (None, None), (1, -1)))
    bounds = ["" if b is None else m.constant(b, kind) for b in (low, high)]
    return Drawn((x, *bounds), {})


def prelu(m: Maker, x: str) -> Drawn:
    shape = m.values[x].shape
    slopes = ([1], [shape[1], *[1] * (len(shape) - 2)], [shape[-1]], list(shape[1:]))
    return Drawn((x, m.weights(*m.random.choice(slopes))), {})


def recurrent(m: Maker, x: str) -> Drawn:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[m.op]
    r = m.random
    hidden, width, batch = r.choice((2, 3)), m.values[x].shape[2], m.values[x].shape[1]
    if not width:  # a GRU of no features ends the process
        raise ValueError
    attributes: dict[str, Any] = {"hidden_size": hidden}
    attributes |= m.pick(
        direction=("forward", "reverse", "bidirectional"),
        linear_before_reset=(0, 1),
        layout=(0, 0, 0, 1),
        clip=(3.0,),
    )
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    inputs = [x, m.weights(ways, gates * hidden, width), m.weights(ways, gates * hidden, hidden)]
    if r.randrange(3):
        inputs.append(m.weights(ways, 2 * gates * hidden))
    if r.randrange(4) == 0 and len(inputs) == 4:
        inputs += ["", m.weights(ways, batch, hidden)]
    return Drawn(tuple(inputs), attributes, r.choice((1, 2)))


def einsum(m: Maker, x: str) -> Drawn:
    shape = m.values[x].shape
    words = {2: ("ij,jk->ik", "ij,ij->i", "ij->ji"), 3: ("bij,jk->bik", "bij,bij->b", "bij->bji")}
    equation = m.random.choice(words[len(shape)])
    if "," not in equation:
        return Drawn((x,), {"equation": equation})
    second = x if equation.startswith(("ij,ij", "bij,bij")) else m.weights(shape[-1], 3)
    return Drawn((x, second), {"equation": equation})


def concat(m: Maker, x: str) -> Drawn:
    axis = m.axis(x)
    of = m.values[x]
    where = axis % of.ndim

    def fits(v: Array) -> bool:
        return (
            v.dtype == of.dtype
            and v.ndim == of.ndim
            and all(
                a == b for i, (a, b) in enumerate(zip(v.shape, of.shape, strict=True)) if i != where
            )
        )

    fitting = [n for n, v in m.values.items() if fits(v)]
    inputs = [x, *(m.random.choice(fitting) for _ in range(m.random.randrange(3)))]
    return Drawn(tuple(inputs), {"axis": axis})


def branched(m: Maker, x: str) -> Drawn:
    flag = m.constant(bool(m.random.randrange(2)), "bool")
    if m.random.randrange(2):
        flags = [n for n, v in m.values.items() if v.dtype == bool and v.size == 1]
        flag = m.random.choice(flags) if flags else flag
    branches = {
        name: {"nodes": [{"op": op, "inputs": [x], "outputs": [f"{name}{m.random.randrange(99)}"]}]}
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    for branch in branches.values():
        branch["outputs"] = [(branch["nodes"][0]["outputs"][0], FLOAT)]
    return Drawn((flag,), branches)


def loop(m: Maker, x: str) -> Drawn:
    k = m.random.randrange(99)
    body = {
        "inputs": [(f"i{k}", INT64, []), (f"go{k}", BOOL, []), (f"v{k}", FLOAT, None)],
        "nodes": [
            {"op": "Identity", "inputs": [f"go{k}"], "outputs": [f"on{k}"]},
            {"op": "Add", "inputs": [f"v{k}", x], "outputs": [f"w{k}"]},
        ],
        "outputs": [(f"on{k}", BOOL), (f"w{k}", FLOAT)],
    }
    return Drawn((m.constant(2), m.constant(True, "bool"), x), {"body": body})


def top(m: Maker, x: str) -> Drawn:
    axis = m.axis(x)
    return Drawn((x, m.constant([1])), {"axis": axis, **m.pick(largest=(0, 1), sorted=(0, 1))}, 2)


def scatter(m: Maker, x: str) -> Drawn:
    shape = [1] * m.values[x].ndim
    return Drawn(
        (x, m.constant(np.zeros(shape, int)), m.weights(*shape)),
        m.pick(axis=(0, 1), reduction=("none", "add")),
    )


def one_hot(m: Maker, x: str) -> Drawn:
    return Drawn((x, m.constant(4), m.constant([0.0, 1.0], "float32")), m.pick(axis=(-1, 1)))


def grid(m: Maker, x: str) -> Drawn:
    n = m.values[x].shape[0]
    pools = {
        "mode": ("bilinear", "nearest", "linear"),
        "padding_mode": ("zeros", "border"),
        "align_corners": (0, 1),
    }
    return Drawn((x, m.weights(n, 3, 2, 2)), m.pick(**pools))


def with_axis(dtypes: tuple[str, ...] = ("float32",), **pools: Sequence[Any]) -> Row:
    def draw(m: Maker, x: str) -> Drawn:
        axis = {"axis": m.axis(x)} if m.random.randrange(4) else {}
        return Drawn((x,), axis | m.pick(**pools))

    return Row(draw, dtypes=dtypes)


def of_sizes(m: Maker, x: str) -> Drawn:
    return Drawn((x,), m.pick(start=(0, 1, -1), end=(2, -1, 3)))


def fixed(*extra: Any, **attributes: Any) -> Callable[[Maker, str], Drawn]:
    """These attributes; further inputs as constants (values, dtype)."""
    return lambda m, x: Drawn((x, *(m.constant(*e) for e in extra)), attributes)


def transpose(m: Maker, x: str) -> Drawn:
    rest = list(range(1, m.values[x].ndim))
    m.random.shuffle(rest)
    return Drawn((x,), {"perm": [0, *rest]} if m.random.randrange(8) else {})


def skip_norm(m: Maker, x: str) -> Drawn:
    width = m.values[x].shape[-1]
    return Drawn((x, x, m.weights(width), m.weights(width)), m.pick(epsilon=(1e-5,)))
