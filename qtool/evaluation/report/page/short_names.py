"""Names of nodes in little room: without what all share, and cut between modules."""

from __future__ import annotations

from collections.abc import Sequence

CUT = "…"


def short_name(name: str, most: int) -> str:
    """Return the end of a long name, where names of layers differ, from the start of a module."""
    if len(name) <= most:
        return name
    end = name[len(name) - max(most - 1, 1) :]
    return CUT + (end.partition(".")[2] or end)


def short_names(names: Sequence[str], most: int) -> list[str]:
    """Return names without the modules that all are in, each with at most some characters."""
    parts = [name.split(".")[:-1] for name in names]
    shared = 0
    while len(names) > 1 and len({tuple(p[: shared + 1]) for p in parts if len(p) > shared}) == 1:
        if any(len(p) <= shared for p in parts):
            break
        shared += 1
    return [short_name(".".join(name.split(".")[shared:]), most) for name in names]


def block_of(name: str) -> str:
    """Return the block of a node: its module up to the first number, such as "layers.3"."""
    parts = name.split(".")
    end = next((i + 1 for i, part in enumerate(parts) if part.isdecimal()), 1)
    return ".".join(parts[:end])
