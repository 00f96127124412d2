"""Archives that unpack to much more than they are: said before they fill the memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

_MAX_RATIO = 200  # times as large as the file: arrays of zeros come to that, data does not
_ALWAYS_ALLOWED = 2**30  # bytes that anything may unpack to


def archive_expansion_error(path: Path) -> str | None:
    """What is wrong with a zip archive (.npz, .pt, .pt2) that would fill the memory; None where
    nothing is, or where it is no zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return None
    packed = path.stat().st_size
    if size <= max(_ALWAYS_ALLOWED, _MAX_RATIO * packed):
        return None
    return f"it would unpack from {packed:,} bytes to {size:,}; is it what you think it is?"
