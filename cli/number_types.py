"""Numbers that a command takes: finite, and none so large that it can only be a slip."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 1_000_000
COUNT = click.IntRange(1, MOST)
"""Samples, tokens, threads."""


DAY = 86_400.0  # seconds


class Real(click.FloatRange):
    """A finite number in a range: NaN is neither more nor less than a goal, and misses none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return float(super().convert(number, param, ctx))


def listed(
    ctx: click.Context,
    param: click.Parameter,
    value: str,
) -> tuple[int, ...]:
    """The callback of an option that takes several counts: 1,32."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and 0 < int(part[:20]) <= MOST for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of numbers like 1,32 (up to {MOST})")
    return tuple(dict.fromkeys(int(part) for part in parts))
