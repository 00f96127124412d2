"""Tables of numbers, whose labels may be names of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.columns import Columns
from qtool.core.data.arguments import Arguments
from qtool.frontends.data.class_order import class_numbers
from qtool.frontends.data.rows import Row
from qtool.frontends.data.tables import number_columns


def number_table(
    path: Path,
    chosen: Sequence[str],
    label: str | None,
    numbers: Mapping[str, int],
    arguments: Arguments,
) -> tuple[Columns, np.ndarray[Any, Any] | None, bool] | None:
    """Return the columns of inputs and of labels of a table of numbers, and whether the labels are
    names; None of other data.

    `numbers` are those of class names.
    """
    table = number_columns(path, chosen, label, arguments)
    if table is not None and table[1] is not None and table[1].dtype == object:
        target = class_numbers([Row(label=str(name)) for name in table[1]], numbers)
        return table[0], target, True
    return None if table is None else (*table, False)
