"""Types of options: finite numbers in plausible ranges, and names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import click

from qtool.core import option_names
from qtool.core.limits import MOST
from qtool.core.option_names import unknown_name

COUNT = click.IntRange(1, MOST)
"""A number of samples, tokens or threads."""


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


class Name(click.ParamType):
    """A name of a table, or several with commas in between.

    With `qtool --import`, which may register further names, any name passes here; the library
    checks it later.

    Args:
        what: the kind of name, such as "target".
        known: names to list in the help.
        several: the value is a comma-separated list.
        parameter: a name may be followed by a colon and a parameter, as in percentile:99.99.
        open: `--import` may add names.
    """

    name = "name"

    def __init__(
        self,
        what: str,
        known: Sequence[str],
        *,
        several: bool = False,
        parameter: bool = False,
        open: bool = True,  # noqa: A002  # the opposite of a closed set
    ) -> None:
        self.what, self.known = what, known
        self.several, self.parameter, self.open = several, parameter, open

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002  # click's signature
        return "NAME,..." if self.several else f"[{'|'.join(self.known)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; of several a tuple."""
        names = [str(value)]
        if self.several:
            names = [name for each in str(value).split(",") if (name := each.strip())]
        checked = tuple(names) if self.several else names[0]
        extended = ctx is not None and bool(ctx.find_root().params.get("imports"))
        if self.open and extended:
            return checked
        for name in names:
            plain = name.partition(":")[0] if self.parameter else name
            if plain not in self.known:
                self.fail(unknown_name(self.what, plain, self.known), param, ctx)
        return checked


RUNTIME = Name("runtime", option_names.RUNTIMES, open=False)
OBSERVER = Name("observer", option_names.OBSERVERS, parameter=True)
TARGET = Name("target", option_names.TARGETS)
FORMAT = Name("format", option_names.FORMATS)
MODE = Name("mode", option_names.MODES, open=False)
ACCURACY = Name("accuracy level", option_names.ACCURACIES, open=False)
ACCURACIES = Name("accuracy level", option_names.ACCURACIES, several=True, open=False)
STEPS = Name("recovery step", option_names.STEPS, several=True)
CHOICES = Name("choice", option_names.CHOICES, several=True, open=False)
