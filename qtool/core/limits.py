"""Ranges of the numbers that a caller sets: goals, times, counts.

NaN compares as false with every number, so a goal of NaN would be missed by nothing.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qtool.core.errors import OptionError
from qtool.core.remedies import CallEdit


@dataclass(frozen=True)
class Range:
    """A range of finite numbers.

    Attributes:
        low: the smallest number; -inf where there is none.
        high: the largest number; inf where there is none.
        low_open: excludes `low` itself.
        high_open: excludes `high` itself.
        whole: takes integers only.
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    whole: bool = False

    def check(self, name: str, value: Any, *, optional: bool = False) -> None:
        """Refuse a value outside of the range.

        Args:
            name: name of the option, for the message.
            value: any object.
            optional: accepts None.

        Raises:
            OptionError: the value is no finite number, or out of the range.
        """
        if not (optional and value is None) and not self._holds(value):
            none = " or None" if optional else ""
            raise OptionError(f"{name} is {value!r}", CallEdit(f"give {self}{none}"))

    def _holds(self, value: Any) -> bool:
        kind: type[Any] = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind) or not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return bool(above and below)

    def __str__(self) -> str:
        parts = []
        if math.isfinite(self.low):
            parts.append(f"{'above' if self.low_open else 'of at least'} {self.low:g}")
        if math.isfinite(self.high):
            parts.append(f"{'below' if self.high_open else 'of at most'} {self.high:g}")
        kind = "a whole number" if self.whole else "a finite number"
        return " ".join([kind, " and ".join(parts)]).rstrip()


def check_fields(record: Any, ranges: Mapping[str, Range]) -> None:
    """Check fields of a dataclass; a field with None as its default may be None.

    Args:
        record: a dataclass instance. A field that holds a tuple is checked item by item.
        ranges: field name -> range.

    Raises:
        OptionError: a field is out of its range. The message names the class and the field.
    """
    for name, allowed in ranges.items():
        value = getattr(record, name)
        optional = record.__dataclass_fields__[name].default is None
        for item in value if isinstance(value, tuple) else [value]:
            allowed.check(f"{type(record).__name__}.{name}", item, optional=optional)


DAY = 86_400.0  # seconds
MOST = 1_000_000
"""Samples, tokens or threads that an option takes."""
THREADS = Range(1, max(64, 4 * (os.cpu_count() or 1)), whole=True)
"""Threads to time with. ONNX Runtime starts any number, and many more threads than
processors take minutes for one run."""
