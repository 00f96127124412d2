"""A limit on the unpacked size of archives, checked before they fill the memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

_MAX_RATIO = 200  # unpacked size over file size: arrays of zeros reach it, data does not
_ALWAYS_ALLOWED = 2**30  # bytes


def archive_expansion_error(path: Path) -> str | None:
    """Return why a zip archive (.npz, .pt, .pt2) must not be unpacked; None if it may be, or if it
    is no zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return None
    packed = path.stat().st_size
    if size <= max(_ALWAYS_ALLOWED, _MAX_RATIO * packed):
        return None
    return (
        f"it would unpack from {packed:,} to {size:,} bytes; check that this is the intended file"
    )
