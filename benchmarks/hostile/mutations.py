"""Ways to damage bytes and JSON documents."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000000)


def damage(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to four damages: flips, cuts, insertions, extreme numbers.

    In half of the cases all stays in its place, so that offsets lead to where they led.
    """
    changed, in_place = bytearray(data), random.random() < 0.5
    for _ in range(random.randint(1, 4)):
        kind = random.choice((0, 0, 1, 4) if in_place else range(7))
        at = random.randrange(max(len(changed), 1))
        if kind == 0 and changed:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1 and changed:
            changed[at] = random.randrange(256)
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at:at] = random.randbytes(random.randint(1, 16))
        elif kind == 4:
            changed[at : at + 4] = struct.pack("<I", random.choice(_NUMBERS))
        elif kind == 5:
            length = random.randint(1, 64)
            changed[at : at + length] = bytes(length)
        else:
            other = random.randrange(max(len(changed), 1))
            changed[at : at + 32] = changed[other : other + 32]
    return bytes(changed)


def hostile_values(canary: str) -> tuple[Any, ...]:
    """Return values that no document should have in a place."""
    code = f"__import__('os').system('touch {canary}')"
    return (
        *(None, True, [], {}, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, float("nan"), float("inf")),
        *("", "../../../etc/passwd", "/etc/passwd", "\x1b[31m", "\ud800", "a" * 100_000, code),
        *([[]], {"a": {}}, [None], ["x"] * 1000, "<script>alert(1)</script>", "\0"),
    )


def damage_json(document: Any, random: Random, canary: str) -> Any:
    """Return the document with a value replaced, removed, or moved under another key."""
    places = list(_places(document))
    if not places:
        return random.choice(hostile_values(canary))
    for _ in range(random.randint(1, 2)):
        owner, key = random.choice(places)
        kind = random.randrange(8)
        if isinstance(owner, dict) and kind == 0:
            owner.pop(key, None)
        elif isinstance(owner, dict) and kind == 1:
            owner[str(random.choice(["x", "", "\x1b[31m", key * 2]))] = owner.get(key)
        else:
            try:
                owner[key] = random.choice(hostile_values(canary))
            except IndexError:
                continue
    return document


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)
