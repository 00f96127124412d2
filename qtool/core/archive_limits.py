"""Checks of archives before they are read: their unpacked size, and their checksums."""

from __future__ import annotations

import zipfile
import zlib
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
    return f"it would unpack from {packed:,} to {size:,} bytes"


def archive_damage(path: Path) -> str | None:
    """Return which member of a zip archive is damaged, by its checksum, which torch.load does not
    compare; None if none is, or if it is no zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (OSError, ValueError, NotImplementedError, EOFError, zlib.error, zipfile.BadZipFile):
        return None  # its reader says why
    return None if member is None else f"its member {member} is damaged"
