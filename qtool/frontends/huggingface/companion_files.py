"""Writes the files that other tools look for next to a model of a transformers folder.

Optimum and transformers.js read config.json, onnxruntime-genai genai_config.json, and all of them
the tokenizer's files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qtool.core.atomic import write_atomic
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.genai_config import CONFIG, genai_config

_COPIED = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)


def is_transformers_folder(folder: Path) -> bool:
    """Return whether a folder has the config.json of transformers; that of timm has no type."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "model_type" in config


def write_companions(model: Any, folder: Path, path: Path) -> list[Path]:
    """Write the configuration and the processors' files next to an exported file.

    A file of the same name and with other contents, which may be another model's, stays.

    Args:
        model: the model; a `DecoderWithCache` also gets the configuration of onnxruntime-genai.
        folder: the model's folder.
        path: the exported file.

    Returns:
        The paths of files that stayed.

    Raises:
        FileError: a file cannot be written.
    """
    if isinstance(model, DecoderWithCache):
        text = json.dumps(genai_config(model, path.name), indent=2) + "\n"
        write_atomic(path.with_name(CONFIG), text.encode())
    kept = []
    for source in sorted({p for pattern in _COPIED for p in folder.glob(pattern)}):
        copy, data = path.with_name(source.name), source.read_bytes() if source.is_file() else None
        if data is None or (copy.exists() and copy.samefile(source)):
            continue
        if copy.exists() and copy.read_bytes() != data:
            kept.append(copy)
        else:
            write_atomic(copy, data)
    return kept
