"""Names that are given once: of nodes, inputs, outputs, and all that stands in a file."""

from __future__ import annotations

from collections.abc import Container, Iterable


def unique(wanted: str, taken: Container[str], joint: str = "_") -> str:
    """`wanted`, or where that is taken the first of `wanted_2`, `wanted_3` ... that is not."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}{joint}{count}"
    return name


def all_unique(wanted: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Each name `unique` among those before it and those taken. Names that are wanted once keep
    theirs, wherever they stand."""
    names = list(wanted)
    found: list[str] = []
    fixed = {*taken}
    single = {n for n in names if names.count(n) == 1} - fixed
    for name in names:
        given = name if name in single else unique(name, fixed | single)
        fixed.add(given)
        found.append(given)
    return tuple(found)
