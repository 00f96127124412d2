"""Number types of options: finite numbers in plausible ranges."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from qtool.core.limits import MOST

COUNT = click.IntRange(1, MOST)
"""A number of samples, tokens or threads."""


class Real(click.FloatRange):
    """A finite number in a range. NaN is refused: a goal of NaN is never missed."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        percent = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", str(value).strip())
        if percent is not None:
            self.fail(f"'{value}' is a percentage; write {float(percent[1]) / 100:g}.", param, ctx)
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return float(super().convert(number, param, ctx))

    def _describe_range(self) -> str:
        """Return nothing without bounds, for which click writes "x<=None"."""
        return "" if self.min is None and self.max is None else super()._describe_range()


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


class Bytes(click.ParamType):
    """A size with a unit: 3GiB, 512M."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        parts = _SIZE.fullmatch(str(value).strip())
        size = 0 if parts is None else int(float(parts[1]) * _UNITS[parts[2].upper()])
        if size < 1:
            self.fail(f"'{value}' is not a size such as 512MiB or 3GiB.", param, ctx)
        return size


class _Counts(click.ParamType):
    """Several counts, such as 1,32."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and 0 < int(part[:20]) <= MOST for part in parts):
            self.fail(f"'{value}' is not a list of numbers like 1,32 (up to {MOST})", param, ctx)
        return tuple(dict.fromkeys(int(part) for part in parts))


COUNTS = _Counts()
