"""Finds samples that cannot be read, such as damaged images, so that they can be skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtool.core.argument_names import argument
from qtool.core.errors import DataError
from qtool.core.remedies import Argument
from qtool.frontends.data.collators import Collator
from qtool.frontends.data.rows import Row


def find_unreadable(rows: Sequence[Row], collate: Collator, share: float) -> dict[int, str]:
    """Return index -> error of the samples that cannot be read.

    Raises:
        DataError: their share is larger than `share`.
    """
    results = ((at, _failure(row, collate)) for at, row in enumerate(rows))
    errors = {at: error for at, error in results if error is not None}
    first = next(iter(errors.values()), "")
    if errors and len(errors) == len(rows):
        raise DataError(f"none of {len(rows)} samples can be read; the first: {first}")
    if len(errors) > share * len(rows):
        raise DataError(
            f"{len(errors)} of {len(rows)} samples cannot be read, more than the share of "
            f"{share:g} that {argument('--max-unreadable')} allows; the first: {first}",
            skipping(len(errors), len(rows)),
        )
    return errors


def skipping(unreadable: int, samples: int) -> Argument:
    """Return the argument that skips so many unreadable samples."""
    share = math.ceil(1000 * unreadable / samples) / 1000
    return Argument("--max-unreadable", share, "skip such files with {}")


def _failure(row: Row, collate: Collator) -> str | None:
    try:
        collate([row])
    except DataError as error:
        return error.problem
    return None
