"""Streams at operators with constants: these absorb factors, and new streams start behind them."""

from __future__ import annotations

import torch
from torch import fx

from qtool.algorithms.cross_layer_equalization.stream_walk import StreamWalk
from qtool.core import graph as G


def conv(walk: StreamWalk, node: fx.Node) -> None:
    """Read streams along dimension 1 by the weight, and start streams that it writes."""
    source, weight, bias = node.args[:3]
    if walk.of(source, 1) is None or not walk.owns(weight, bias):
        walk.stop(node)
        return
    groups, ones = int(node.args[6]), [1] * (G.rank(node) - 2)  # type: ignore[arg-type]  # an int
    outputs, width = (int(s) for s in G.shape(weight)[:2])  # type: ignore[arg-type]  # a node
    written = torch.arange(outputs)
    read = (written // (outputs // groups))[:, None] * width + torch.arange(width)
    read = read[:1] if groups == 1 else read
    walk.begin(node, 1)
    walk.add_slot(weight, source, read.reshape(*read.shape, *ones), 1)
    walk.add_slot(weight, node, written.reshape(-1, 1, *ones), -1)
    walk.add_slot(bias, node, written, -1)


def conv_transpose(walk: StreamWalk, node: fx.Node) -> None:
    """Like `conv`, without groups: the weight is [in, out, *kernel]."""
    source, weight, bias = node.args[:3]
    if walk.of(source, 1) is None or node.args[6] != 1 or not walk.owns(weight, bias):
        walk.stop(node)
        return
    inputs, outputs, *kernel = (int(s) for s in G.shape(weight))  # type: ignore[arg-type]  # a node
    ones = [1] * len(kernel)
    walk.begin(node, 1)
    walk.add_slot(weight, source, torch.arange(inputs).reshape(-1, 1, *ones), 1)
    walk.add_slot(weight, node, torch.arange(outputs).reshape(1, -1, *ones), -1)
    walk.add_slot(bias, node, torch.arange(outputs), -1)


def linear(walk: StreamWalk, node: fx.Node) -> None:
    """Read streams along the last dimension by the weight, and start streams that it writes."""
    source, weight, bias = *node.args[:2], G.argument(node, 2, "bias")
    last = G.rank(node) - 1
    if walk.of(source, last) is None or not walk.owns(weight, bias):
        walk.stop(node)
        return
    outputs, width = (torch.arange(int(s)) for s in G.shape(weight))  # type: ignore[arg-type]
    walk.begin(node, last)
    walk.add_slot(weight, source, width[None], 1)
    walk.add_slot(weight, node, outputs[:, None], -1)
    walk.add_slot(bias, node, outputs, -1)


def batch_norm(walk: StreamWalk, node: fx.Node) -> None:
    """Scale gamma, mean and beta of gamma (x - mean) / deviation + beta, not the deviation."""
    source, gamma, beta, mean = node.args[:4]
    constants = [c for c in (gamma, beta, mean) if c is not None]
    if (
        walk.of(source, 1) is None
        or len(constants) < 3
        or node.args[5]
        or not walk.owns(*constants)
    ):
        walk.stop(node)
        return
    channels = torch.arange(len(walk.begin(node, 1).streams))
    for constant, tensor, power in (
        (gamma, source, 1),
        (mean, source, -1),
        (gamma, node, -1),
        (beta, node, -1),
    ):
        walk.add_slot(constant, tensor, channels, power)


def group_norm(walk: StreamWalk, node: fx.Node) -> None:
    """Pin the input, and start streams that gamma and beta write."""
    gamma, beta = G.argument(node, 2, "weight"), G.argument(node, 3, "bias")
    walk.stop(node)
    if gamma is not None and beta is not None and walk.owns(gamma, beta):
        channels = torch.arange(len(walk.begin(node, 1).streams))
        walk.add_slot(gamma, node, channels, -1)
        walk.add_slot(beta, node, channels, -1)
