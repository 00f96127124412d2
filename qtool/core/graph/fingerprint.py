"""Hashes of a captured model: of its graph and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.types import Array


def fingerprint(module: fx.GraphModule, stored: Container[str] = ()) -> str:
    """Return a SHA-256 (32 hex digits) of operators, edges, constants and weights, not of names.

    Args:
        module: the graph.
        stored: attributes whose values a file holds, which are left out.
    """
    digest = hashlib.sha256()
    for node, wiring in _wired(module.graph):
        digest.update(wiring.encode())
        if node.op == "get_attr" and node.target not in stored:
            array = G.tensor(module, node).detach().cpu().contiguous().view(-1)
            digest.update(f"{array.dtype} {G.shape(node)}\n".encode())
            if array.numel():
                digest.update(array.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def weights_digest(module: fx.GraphModule) -> str:
    """Return a SHA-256 (32 hex digits) of the parameters and constants that the graph reads.

    It depends neither on their names nor on their order.
    """
    hashes = set()
    for node in module.graph.find_nodes(op="get_attr"):
        array = G.tensor(module, node).detach().cpu().contiguous().view(-1)
        digest = hashlib.sha256(f"{array.dtype} {G.shape(node)}\n".encode())
        if array.numel():
            digest.update(array.view(torch.uint8).numpy().data)
        hashes.add(digest.hexdigest())
    return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()[:32]


def float_arrays(module: fx.GraphModule) -> Iterator[Array]:
    """Yield the float parameters and constants that the graph reads, float32."""
    for node in module.graph.find_nodes(op="get_attr"):
        if (tensor := G.tensor(module, node).detach()).is_floating_point():
            yield tensor.float().cpu().numpy()


def _wired(graph: fx.Graph) -> Iterator[tuple[fx.Node, str]]:
    """Yield each node and a text of its operator and arguments."""
    numbers = {n: i for i, n in enumerate(graph.nodes)}

    def stable(argument: Any) -> Any:
        return f"%{numbers[argument]}" if isinstance(argument, fx.Node) else argument

    for node in graph.nodes:
        target = "" if node.op == "get_attr" else _stable_name(node.target)
        args = fx.node.map_aggregate((node.args, node.kwargs), stable)
        yield node, f"{node.op} {target} {args}\n"


def _stable_name(target: object) -> str:
    """Return a name that is equal in every process: the str of a function has its address."""
    if isinstance(target, FunctionType):
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def state_hash(module: fx.GraphModule) -> str:
    """Return a SHA-256 (hex) of the graph, points, weights and scales of a module with points."""
    digest = hashlib.sha256()
    for _, wiring in _wired(module.graph):
        digest.update(wiring.encode())
    for name, part in module.named_modules():
        digest.update(f"{name} {part.extra_repr()}\n".encode())  # a point's has its type
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
