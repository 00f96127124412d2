"""A workaround: a rewrite of files that avoids a defect of the software that reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from qtool.core.versions import version_of


@dataclass(frozen=True)
class Workaround:
    """One defect and its rewrite.

    Attributes:
        key: unique.
        package: Python package with the defect.
        reason: operator and defect, in a sentence.
        rewrite: changes a model in place, so that it computes the same without the defect.
        seen_in: version of the package that has the defect.
        since: first version with it; "" where it is older than what qtool runs on, or not known.
        fixed_in: first version without it; "" while there is none.
        upstream: address of the report or of the change that made it; "" where none is known.
        reproduction: test that fails once the defect is fixed, `file::function` below
            tests/upstream.
    """

    key: str
    package: str
    reason: str
    rewrite: Callable[[Any], None]
    seen_in: str
    since: str = ""
    fixed_in: str = ""
    upstream: str = ""
    reproduction: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether the installed version has the defect; True if the package is not installed."""
        installed = _release(version_of(self.package))
        older = _release(self.since) > installed
        mended = bool(self.fixed_in) and installed >= _release(self.fixed_in)
        return not installed or not (older or mended)


def apply_workarounds(model: Any, workarounds: Iterable[Workaround]) -> None:
    """Rewrite a model in place by each workaround that is needed."""
    for workaround in workarounds:
        if workaround.is_needed:
            workaround.rewrite(model)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
