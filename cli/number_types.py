"""Number types of options: finite numbers in plausible ranges."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 1_000_000
COUNT = click.IntRange(1, MOST)
"""A number of samples, tokens or threads."""
DAY = 86_400.0  # seconds


class Real(click.FloatRange):
    """A finite number in a range. NaN is refused: a goal of NaN is never missed."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return float(super().convert(number, param, ctx))

    def _describe_range(self) -> str:
        """Return nothing without bounds, for which click writes "x<=None"."""
        return "" if self.min is None and self.max is None else super()._describe_range()


def parse_counts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse the value of an option that takes several counts, such as 1,32."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and 0 < int(part[:20]) <= MOST for part in parts):
        raise click.BadParameter(f"'{value}' is not a list of numbers like 1,32 (up to {MOST})")
    return tuple(dict.fromkeys(int(part) for part in parts))
