"""A hash that tells one captured model from another: its graph and its weights."""

from __future__ import annotations

import hashlib
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

from qtool import graph as G

__all__ = ["fingerprint", "mark_of"]


def fingerprint(module: fx.GraphModule) -> str:
    """SHA-256 (hex, 32 digits) of operators, wiring, constants and weights; not of names."""
    digest = hashlib.sha256()
    numbers = {n: i for i, n in enumerate(module.graph.nodes)}

    def stable(argument: Any) -> Any:
        return f"%{numbers[argument]}" if isinstance(argument, fx.Node) else argument

    for node in module.graph.nodes:
        target = "" if node.op == "get_attr" else _stable_name(node.target)
        args = fx.node.map_aggregate((node.args, node.kwargs), stable)
        digest.update(f"{node.op} {target} {args}\n".encode())
        if node.op == "get_attr":
            array = G.tensor(module, node).detach().cpu().contiguous().view(-1)
            digest.update(f"{array.dtype} {G.shape(node)}\n".encode())
            if array.numel():
                digest.update(array.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def _stable_name(target: object) -> str:
    """A name that is the same in every process; that of a plain function holds its address."""
    if isinstance(target, FunctionType):
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def mark_of(module: nn.Module) -> str:
    """Tells the model from itself with other weights or scales."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
