"""Names of the values in nested arguments: the path to each, joined by dots. Those of labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LABELS = frozenset(
    {
        "class",
        "end_positions",
        "label",
        "labels",
        "next_sentence_label",
        "start_positions",
        "target",
        "targets",
        "y",
    }
)
"""Usual keys of labels in batches that are dicts."""
_SEPARATORS = re.compile(r"[^0-9A-Za-z]+")


def values_of(tree: Any) -> list[Any]:
    """Return the values in nested dicts, lists and tuples in order, without None."""
    return [value for _, value in _leaves(tree, ())]


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        entries = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        keys: Sequence[Any] = getattr(tree, "_fields", range(len(tree)))
        entries = [(str(key), value) for key, value in zip(keys, tree, strict=True)]
    else:
        if tree is not None:
            yield path, tree
        return
    for key, value in entries:
        yield from _leaves(value, (*path, key))


def by_input_name(
    positional: Sequence[Any], named: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Return the values in arguments of a model by the names of its inputs, without None.

    Args:
        positional: arguments whose values, in nested dicts, lists and tuples, have the first of
            `names`, in order; further ones are left out.
        named: arguments whose values have the path to them as name, `a.0.key`. A name that differs
            from an input's in separators only (`past_key_values_0_key`) is taken for it.
        names: names of the inputs.
    """
    known = {_plain(name): name for name in names}
    values = dict(zip(names, (value for _, value in _leaves(positional, ())), strict=False))
    for path, value in _leaves(named, ()):
        name = ".".join(path)
        values[name if name in names else known.get(_plain(name), name)] = value
    return values


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name)
