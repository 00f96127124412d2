"""The step `rotation`: the residual stream of a decoder is rotated, offline.

The embedding and the layers that write to the stream are multiplied by an orthogonal matrix, and
the layers that read it by its inverse, so that the float model is the same and each weight is a
mixture of all: nearly Gaussian, without outliers. This is the part of QuaRot (Ashkboos et al. 2024)
that costs nothing at run time, except that a head which shares the table of words gets a tensor of
its own. Gains of norms are folded into the layers behind them. Values are not rotated head by
head, since the cache is an output, and neither is what the last layer of an MLP reads, which would
take a product at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.layer_rows import is_pruned
from qtool.algorithms.registry import ROTATION
from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.core.types import Change, Observed
from qtool.planning.plan import Kind, QuantPlan

REASON = "the residual stream is rotated, so that weights have no outliers"
STATIC = "skipped, since activations have fixed ranges, which were observed before"
PRUNED = f"{ROTATION.name}: a rotated weight has no zeros, so that these are no longer pruned: {{}}"
SEED = 0

_Rotate = Callable[[torch.Tensor], torch.Tensor]
_Forms = dict[str, tuple[_Rotate, list[fx.Node]]]
"""Where the matrix multiplies -> the function that rotates a constant so, and its readers."""


def propose(state: ConversionState) -> ConversionState:
    """Return the state with a rotated residual stream, or with a note on why it has none."""
    if _has_fixed_ranges(state.plan):
        return state.with_notes(f"{ROTATION.name}: {STATIC}")
    try:
        stream = find_residual_stream(state.graph.graph)
    except NoStreamError as reason:
        return state.with_notes(f"{ROTATION.name}: skipped, since {reason}")
    count = len(stream.tables) + len(stream.writers) + len(stream.readers)
    module, layers = state.graph.module, [*stream.writers, *stream.readers]
    pruned = [G.name_of(n) for n in layers if is_pruned(G.tensor(module, G.source(n, 1)), n)]
    notes = [PRUNED.format(", ".join(pruned))] if pruned else []
    return replay(state, Change(ROTATION.name, count, REASON)).with_notes(*notes)


def replay(state: ConversionState, change: Change) -> ConversionState:
    """Return the state with a rotated residual stream, as a change records it."""
    return state.apply_edit(change, rotate)


def _has_fixed_ranges(plan: QuantPlan) -> bool:
    return any(p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed) for p in plan)


def rotate(module: fx.GraphModule) -> int:
    """Rotate the residual stream of a graph in place; return how many tensors changed.

    Raises:
        NoStreamError: there is no stream that may be rotated.
    """
    stream = find_residual_stream(module.graph)
    matrix = randomized_hadamard(stream.width)
    constants = _forms(module, stream, matrix)
    for constant, forms in constants.items():
        _replace(module, constant, forms)
    for norm in {n for n in stream.readers.values() if n is not None}:
        gain = norm.args[2]
        if isinstance(gain, fx.Node):
            own = G.add_tensor(
                module, norm, torch.ones_like(G.tensor(module, gain)), G.name_of(gain)
            )
            norm.replace_input_with(gain, own)
    G.finish(module)
    return len(constants)


def _forms(
    module: fx.GraphModule, stream: ResidualStream, matrix: torch.Tensor
) -> Mapping[str, _Forms]:
    """Return constant -> its rotated forms: readers may need several, as a table that is the head.

    The stream x becomes x @ matrix: tables [words, width] and biases [width] are multiplied like
    it, weights [out, in] of writers by its transpose from the left, of readers from the right.
    """
    constants: dict[str, _Forms] = {}

    def add(reader: fx.Node, position: int, side: str, rotate: _Rotate) -> None:
        constant = G.argument(reader, position, "bias")
        if isinstance(constant, fx.Node):
            forms = constants.setdefault(str(constant.target), {})
            forms.setdefault(side, (rotate, []))[1].append(reader)

    for table in stream.tables:
        add(table, 1, "right", partial(_times, matrix))
    for layer in stream.writers:
        add(layer, 1, "left", lambda t: matrix.t() @ t)
        add(layer, 2, "right", partial(_times, matrix))
    for layer, norm in stream.readers.items():
        gain = None if norm is None else norm.args[2]
        if not isinstance(gain, fx.Node) or _is_one(G.tensor(module, gain)):
            add(layer, 1, "right", partial(_times, matrix))
        else:
            rows = G.tensor(module, gain).detach().double()[:, None] * matrix
            add(layer, 1, f"right, {gain.target}", partial(_times, rows))
    return constants


def _replace(module: fx.GraphModule, target: str, forms: _Forms) -> None:
    """Give each reader of a constant its own form of it: one new tensor per form.

    Raises:
        NoStreamError: something outside of the stream reads the constant.
    """
    nodes = [n for n in module.graph.nodes if n.op == "get_attr" and n.target == target]
    old = G.tensor(module, nodes[0]).detach()
    others = {u for n in nodes for u in n.users} - {
        r for _, readers in forms.values() for r in readers
    }
    if others:
        names = ", ".join(sorted(G.name_of(n) for n in others))
        raise NoStreamError(f"'{names}' reads a weight of the residual stream, too")
    name = G.name_of(nodes[0])
    for number, (rotate_data, readers) in enumerate(forms.values()):
        data = torch.nn.Parameter(rotate_data(old.double()).to(old), requires_grad=False)
        first = next(n for n in module.graph.nodes if n in readers)
        new = G.add_tensor(module, first, data, f"{name}.rotated" if number else name)
        for reader in readers:
            for node in nodes:
                reader.replace_input_with(node, new)


def _times(matrix: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight @ matrix


def _is_one(gain: torch.Tensor) -> bool:
    return bool((gain == 1).all())


def randomized_hadamard(width: int) -> torch.Tensor:
    """Return an orthogonal matrix whose rows have random signs, float64 [width, width].

    It is the Kronecker product of two matrices: Sylvester's Hadamard matrix, for the largest power
    of two that divides the width, and the cosine transform, for the odd factor, since Hadamard
    matrices of other sizes have no simple form. The signs (Ashkboos et al. 2024, QuaRot) are the
    same in each run, so that a conversion can be repeated.

    Args:
        width: number of channels.
    """
    power = width & -width
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < power:
        pair = torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)
        hadamard = torch.cat(pair)
    matrix = torch.kron(hadamard / math.sqrt(power), _cosines(width // power))
    generator = torch.Generator().manual_seed(SEED)
    signs = torch.randint(2, (width, 1), generator=generator).double() * 2 - 1
    return matrix * signs


def _cosines(size: int) -> torch.Tensor:
    """Return the matrix of the orthonormal cosine transform (DCT-II)."""
    at = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


# The residual stream of a decoder: what writes to it, and what reads it.
#
# Embeddings and linear layers write to it, sums join them, RMSNorms and linear layers read it. An
# RMSNorm divides by a length, which a rotation keeps. The stream may therefore be rotated by any
# orthogonal matrix if all of these are rotated along (Ashkboos et al. 2024, SliceGPT).


aten = torch.ops.aten

_MOVES: dict[Any, int | None] = {  # operator -> argument with the dimension that it works along
    aten.reshape.default: None,
    aten.unsqueeze.default: None,
    aten.clone.default: None,
    aten.slice.Tensor: 1,
    aten.select.int: 1,
    aten.index_select.default: 1,
}


class NoStreamError(ValueError):
    """Why there is no residual stream that may be rotated, as part of a sentence."""


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """A residual stream.

    Attributes:
        width: number of channels.
        tables: lookups that write to it.
        writers: linear layers that write to it.
        readers: linear layer that reads it -> the RMSNorm in between, if any.
    """

    width: int
    tables: list[fx.Node] = field(default_factory=list)
    writers: list[fx.Node] = field(default_factory=list)
    readers: dict[fx.Node, fx.Node | None] = field(default_factory=dict)


def find_residual_stream(graph: fx.Graph) -> ResidualStream:
    """Return the stream that starts at the first embedding of a graph.

    Raises:
        NoStreamError: there is none, or something reads or writes it that has no rotated form.
    """
    table = next((n for n in G.calls(graph) if _key(n) == "embedding"), None)
    if table is None:
        raise NoStreamError("there is no embedding that a residual stream starts at")
    stream, members = ResidualStream(int(G.shape(table)[-1])), set[fx.Node]()
    waiting = [table]
    while waiting:
        node = waiting.pop()
        if node in members:
            continue
        members.add(node)
        waiting += _sources(stream, node)
        for reader in node.users:
            waiting += _read(stream, node, reader)
    if not stream.writers or not stream.readers:
        raise NoStreamError("no linear layers read and write the same residual stream")
    return stream


def _sources(stream: ResidualStream, node: fx.Node) -> list[fx.Node]:
    """Return the operands of a member that are members, too; note what writes to the stream."""
    if _key(node) == "embedding":
        stream.tables.append(node)
        return []
    if _key(node) == "linear":
        stream.writers.append(node)
        return []
    if node.target is aten.add.Tensor and not node.kwargs:
        operands = [a for a in node.args if isinstance(a, fx.Node) and _has_width(stream, a)]
        if len(operands) == 2:
            return operands
    if node.target is aten.mul.Tensor and (source := _scaled(node)) is not None:
        return [source]
    if _keeps_channels(node):
        return list(node.all_input_nodes[:1])
    raise NoStreamError(
        f"'{G.name_of(node)}' writes to the residual stream and has no rotated form"
    )


def _read(stream: ResidualStream, node: fx.Node, reader: fx.Node) -> list[fx.Node]:
    """Return a reader if it is a member itself; note linear layers and norms."""
    if reader.target is aten.sym_size.int:
        return []
    if reader.target is aten.rms_norm.default and reader.args[0] is node:
        for layer in _layers_behind(reader):
            stream.readers[layer] = reader
        return []
    if _key(reader) == "linear" and reader.args[0] is node:
        stream.readers[reader] = None
        return []
    if reader.target in (aten.add.Tensor, aten.mul.Tensor) or _keeps_channels(reader):
        return [reader]
    raise NoStreamError(f"'{G.name_of(reader)}' reads the residual stream and has no rotated form")


def _layers_behind(norm: fx.Node) -> list[fx.Node]:
    """Return the linear layers that read a norm's result; nothing else may."""
    layers, waiting = [], [norm]
    while waiting:
        node = waiting.pop()
        for reader in node.users:
            if _key(reader) == "linear" and reader.args[0] is node:
                layers.append(reader)
            elif _keeps_channels(reader):
                waiting.append(reader)
            elif reader.target is not aten.sym_size.int:
                raise NoStreamError(
                    f"'{G.name_of(reader)}' reads the result of '{G.name_of(norm)}' and is no "
                    "linear layer"
                )
    return layers


def _keeps_channels(node: fx.Node) -> bool:
    """Return whether an operator moves rows of channels and leaves the order in each row."""
    if node.target not in _MOVES or not isinstance(node.args[0], fx.Node):
        return False
    at, source = _MOVES[node.target], node.args[0]
    sizes = G.shape(source)[-1], G.shape(node)[-1]
    if not all(isinstance(size, int) for size in sizes) or sizes[0] != sizes[1]:
        return False
    along = G.argument(node, at, "dim", 0) if at is not None else 0
    return bool(along not in (-1, G.rank(source) - 1))


def _scaled(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a product with one number scales."""
    x, factor = node.args[:2]
    if not isinstance(x, fx.Node):
        return None
    is_number = not isinstance(factor, fx.Node) or (
        factor.op == "get_attr" and G.is_tensor(factor) and G.value(factor).numel() == 1
    )
    return x if is_number else None


def _has_width(stream: ResidualStream, node: fx.Node) -> bool:
    return G.is_tensor(node) and G.rank(node) > 1 and G.shape(node)[-1] == stream.width


def _key(node: fx.Node) -> str:
    row = row_of(node)
    return "" if row is None else row.key
