"""Tensors of nested arguments by name.

A tensor inside a list or dict has the path to it as its name, joined by dots:
`past_key_values.0.key`. The names of a file's inputs and outputs are made in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

from qtool.core.data.batches import Batch
from qtool.core.leaf_names import by_input_name


def key_text(key: Any) -> str:
    """Return one key of a pytree path as text."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def leaf_paths(tree: Any) -> list[tuple[str, ...]]:
    """Return the path of every leaf, as texts."""
    leaves: list[Any] = pytree.tree_flatten_with_path(tree)[0]
    return [tuple(key_text(k) for k in path) for path, _ in leaves]


def named_leaves(batch: Batch, names: Sequence[str]) -> dict[str, Any]:
    """Return the leaves of a batch by name, without None.

    Args:
        batch: the leaves of its positional arguments have the first of `names`, in order; further
            ones are left out. Those of its keyword arguments are named by their paths.
        names: names of the model's inputs. A name that differs from one of them in separators only
            (`past_key_values_0_key`) is taken for it.
    """
    positional = [x for x in pytree.tree_leaves(batch.args) if x is not None]
    paths, leaves = leaf_paths(batch.kwargs), pytree.tree_leaves(batch.kwargs)
    named = {".".join(p): x for p, x in zip(paths, leaves, strict=True) if x is not None}
    return by_input_name(positional, named, names)


def nested_arguments(named: Mapping[str, Any], parameters: Iterable[str]) -> dict[str, Any]:
    """Return named tensors as nested arguments: the inverse of `named_leaves`.

    Args:
        named: `a.0.key` becomes the entry "key" of the first entry of the list `a`.
        parameters: names of arguments; a name that does not begin with one of them stays flat.
    """
    known, tree = set(parameters), dict[str, Any]()
    for name, value in named.items():
        path = name.split(".") if name not in known and name.partition(".")[0] in known else [name]
        inner = tree
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return {name: _lists(inner) for name, inner in tree.items()}


def _lists(tree: Any) -> Any:
    """Return a tree with a list for each dict whose keys are 0, 1 ..."""
    if not isinstance(tree, dict):
        return tree
    keys = sorted(tree, key=lambda k: (len(k), k))
    if keys == [str(i) for i in range(len(tree))]:
        return [_lists(tree[k]) for k in keys]
    return {k: _lists(v) for k, v in tree.items()}
