"""Unique names of nodes, inputs, outputs and everything else in a file."""

from __future__ import annotations

from collections.abc import Container, Iterable


def unique(wanted: str, taken: Container[str]) -> str:
    """Return `wanted`, or the first free name of `wanted_2`, `wanted_3` ..."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def all_unique(wanted: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Return each name made unique; names that occur once stay as they are."""
    names = list(wanted)
    result: list[str] = []
    used = {*taken}
    single = {n for n in names if names.count(n) == 1} - used
    for name in names:
        new = name if name in single else unique(name, used | single)
        used.add(new)
        result.append(new)
    return tuple(result)
