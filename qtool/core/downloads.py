"""Recognises what a download left in place of a file: a pointer of Git LFS, a page or message of a
server, or nothing."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path

from qtool.core.errors import QtoolError
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import OtherFile

TEXTS = (".txt", ".csv", ".tsv", ".json", ".jsonl")
"""Suffixes of files whose contents are text."""

DOWNLOAD = OtherFile("download it again")
_INTENDED = OtherFile("give the intended file")
_ITSELF = OtherFile("download the file itself, with a login if the address asks for one")
_PULL = OtherFile("run `git lfs pull` in its folder, or download the file itself")
_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]{1,80}?)\s*<", re.IGNORECASE)
_PAGE = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?<(!doctype html|html|error)", re.IGNORECASE
)
_READ = 4096  # first bytes of a file that are looked at
_ID = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+")
_MODELS = "models--"


def check_archive(path: str | os.PathLike[str], kind: type[QtoolError]) -> None:
    """Check, before a zip archive is unpacked, its size and its checksums.

    Args:
        path: the file; one that is no zip archive is its reader's business.
        kind: class of the error.

    Raises:
        kind: it would take far more than its own size, or a member is damaged.
    """
    if (why := archive_expansion_error(Path(path))) is not None:
        raise kind(f"{path} is not read: {why}", _INTENDED)
    if (why := archive_damage(Path(path))) is not None:
        raise kind(f"{path} is not read: {why}", OtherFile("copy the file again"))


def check_download(path: str | os.PathLike[str], kind: type[QtoolError]) -> None:
    """Check, before a file is read, that it has contents of its own.

    Args:
        path: the file; what does not exist is its reader's business.
        kind: class of the error.

    Raises:
        kind: the file is empty, a pointer of Git LFS, a page of the web, or a text although it has
            a suffix that is not one of `TEXTS`.
    """
    if not is_file(path):
        return
    file = Path(path)
    try:
        with file.open("rb") as opened:
            head = opened.read(_READ)
    except OSError:
        return  # its reader says why
    if not head:
        raise kind(f"{file} is empty", DOWNLOAD)
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        size = _SIZE.search(head)
        of = f" of {int(size[1]):,} bytes" if size else ""
        raise kind(f"{file} is a pointer of Git LFS, not the file{of} that it stands for", _PULL)
    suffix = file.suffix.lower()
    if suffix != ".txt" and _PAGE.match(head):
        title = _TITLE.search(head)
        named = f" ('{title[1].decode(errors='replace')}')" if title else ""
        what = f"the {suffix} file" if suffix else "the file"
        raise kind(f"{file} is a page of the web{named}, not {what}", _ITSELF)
    if suffix and suffix not in TEXTS and len(head) < _READ and (text := _text(head)):
        raise kind(f"{file} is a text ({text[:80]!r}), not the {suffix} file", _ITSELF)


def _text(head: bytes) -> str:
    """Return bytes as a text in one line; "" if they are none."""
    try:
        line = " ".join(head.decode("utf-8-sig").split())
    except UnicodeDecodeError:
        return ""
    return line if line.isprintable() else ""


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


# Folders of the local Hugging Face cache, by the id of their model. Nothing is downloaded.


def local_model(source: str) -> str:
    """Return the cached folder of a hub id ("org/model"); any other text as it is.

    A file or folder of that name wins. The revision is that of the branch "main", as it was when it
    was downloaded, or the only one.
    """
    if not _ID.fullmatch(source) or is_dir(source) or is_file(source):
        return source
    folder = _cache() / f"{_MODELS}{source.replace('/', '--')}"
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    if is_file(main):
        revisions = [snapshots / main.read_text("utf-8").strip()]
    else:
        revisions = [*snapshots.iterdir()] if is_dir(snapshots) else []
    if len(revisions) != 1 or not is_file(revisions[0] / "config.json"):
        return source
    return str(revisions[0])


def hub_id(folder: Path) -> str:
    """Return the hub id of a folder in a cache; "" for any other folder."""
    *_, model, snapshots, _ = ("", "", *folder.absolute().parts)
    is_cached = snapshots == "snapshots" and model.startswith(_MODELS)
    return model.removeprefix(_MODELS).replace("--", "/") if is_cached else ""


def _cache() -> Path:
    """Return the folder of the cache, from the variables that huggingface_hub reads."""
    variables = os.environ
    if hub := variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE"):
        return Path(hub).expanduser()
    base = variables.get("XDG_CACHE_HOME") or "~/.cache"
    home = variables.get("HF_HOME") or Path(base) / "huggingface"
    return Path(home).expanduser() / "hub"
