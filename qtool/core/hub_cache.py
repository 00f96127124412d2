"""Folders of the local Hugging Face cache, by the id of their model. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from qtool.core.paths import is_dir, is_file

_ID = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+")
_MODELS = "models--"


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
