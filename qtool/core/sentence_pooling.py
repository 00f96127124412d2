"""How a folder of Sentence Transformers says that states of tokens become one vector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from qtool.core.downloads import DOWNLOAD
from qtool.core.errors import DataError, describe

MEAN = "mean"
POOLING_FILE = Path("1_Pooling", "config.json")
_MODE = "pooling_mode"
_FLAGS = {
    f"{_MODE}_mean_tokens": MEAN,
    f"{_MODE}_mean_sqrt_len_tokens": MEAN,  # of the same direction
    f"{_MODE}_max_tokens": "max",
    f"{_MODE}_cls_token": "cls",
    f"{_MODE}_lasttoken": "last",
}


def stored_poolings(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the poolings in a folder's configuration: "mean", "max", "cls", "last" or
    what it has; None without such a file.

    Raises:
        DataError: the file cannot be read.
    """
    file = folder / POOLING_FILE
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {file} ({describe(error)})", DOWNLOAD) from error
    return tuple(sorted(_chosen(config))) if isinstance(config, Mapping) else ()


def _chosen(config: Mapping[str, object]) -> set[str]:
    flags = {_FLAGS.get(k, k) for k, v in config.items() if k.startswith(f"{_MODE}_") and v is True}
    named = config.get(_MODE)
    return {named} if isinstance(named, str) else flags
