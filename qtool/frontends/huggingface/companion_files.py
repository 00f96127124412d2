"""Writes the files that other tools look for next to a model of a transformers folder.

Optimum and transformers.js read config.json, onnxruntime-genai genai_config.json,
sentence-transformers modules.json, and all of them the tokenizer's files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qtool.core.atomic import write_atomic
from qtool.core.log import log_note
from qtool.core.path_arguments import QUANTIZE_CONFIG
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.folder_layout import GENAI, JS, SENTENCES, FolderLayout, dtype
from qtool.frontends.huggingface.genai_files import CONFIG, genai_config

_CONFIG, _JS_CONFIG, _MODULES = "config.json", "transformers.js_config", "modules.json"
_QUANTIZATION = "quantization_config"
_COPIED = (
    _CONFIG,
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
_OF_SENTENCES = (
    _MODULES,
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "[0-9]*_*/*",
)


def is_transformers_folder(folder: Path) -> bool:
    """Return whether a folder has the config.json of transformers; that of timm has no type."""
    return "model_type" in read_config(folder)


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration in a folder; {} without one."""
    config = _read_json(folder / _CONFIG)
    return config if isinstance(config, dict) else {}


def write_companions(
    model: Any,
    source: Path,
    path: Path,
    layout: FolderLayout | None = None,
    folder: Path | None = None,
    mode: str = "",
) -> list[Path]:
    """Write the configuration and the processors' files next to an exported file.

    A file of the same name and with other contents, which may be another model's, stays.

    Args:
        model: the model; a `DecoderWithCache` also gets the configuration of onnxruntime-genai.
        source: the model's folder.
        path: the exported file.
        layout: layout of the folder that is written; None for a file with the others next to it.
        folder: that is written; by default that of the exported file.
        mode: quantization scheme of the file.

    Returns:
        The paths of files that stayed.

    Raises:
        FileError: a file cannot be written.
    """
    folder = path.parent if folder is None else folder
    consumers = (GENAI, SENTENCES) if layout is None else layout.consumers
    if isinstance(model, DecoderWithCache) and GENAI in consumers:
        named = path.relative_to(folder).as_posix()
        write_atomic(folder / CONFIG, _as_json(genai_config(model, named)))
    patterns = _COPIED + (_OF_SENTENCES if {SENTENCES, JS} & set(consumers) else ())
    copies = {p for pattern in patterns for p in source.glob(pattern) if p.is_file()}
    kept = []
    for original in sorted(copies):
        name = original.relative_to(source)
        data = original.read_bytes()
        if name.name == _CONFIG and len(name.parts) == 1:
            data = _config_of_files(
                data, {_JS_CONFIG: {"dtype": dtype(mode)}} if JS in consumers else {}
            )
        if not _write(folder / name, data):
            kept.append(folder / name)
    names = sorted({p.name for p in copies} - {p.name for p in kept})
    if layout is None and names:
        log_note(f"{', '.join(names)} of {source.name} lie next to {path.name}")
    return kept


def _config_of_files(data: bytes, entries: Mapping[str, Any]) -> bytes:
    """Return a config.json with more entries, and without that of the source's own codes."""
    config = json.loads(data)
    if not entries and _QUANTIZATION not in config:
        return data
    config.pop(_QUANTIZATION, None)
    return _as_json(config | entries)


def write_record(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write quantize_config.json: how each ONNX file of a folder was quantized.

    Raises:
        FileError: it cannot be written.
    """
    write_atomic(folder / QUANTIZE_CONFIG, _as_json({"quantizer": "qtool", "files": files}))


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of quantize_config.json whose files are there; {} without one of qtool."""
    content = _read_json(folder / QUANTIZE_CONFIG)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or content.get("quantizer") != "qtool":
        return {}
    return {
        name: row
        for name, row in files.items()
        if isinstance(row, dict) and {"mode", "target"} <= row.keys() and (folder / name).is_file()
    }


def _write(copy: Path, data: bytes) -> bool:
    """Write a file unless another one is there; return whether it has this content now."""
    if copy.exists() and copy.read_bytes() != data:
        if not _same_config(copy, data):
            return False
        write_atomic(copy, data)
    elif not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, data)
    return True


def _same_config(copy: Path, data: bytes) -> bool:
    """Return whether two configurations differ in what is written for transformers.js alone."""
    if copy.name != _CONFIG:
        return False
    before, after = _read_json(copy), json.loads(data)
    if not isinstance(before, dict) or _JS_CONFIG not in before | after:
        return False
    return {**before, _JS_CONFIG: 0} == {**after, _JS_CONFIG: 0}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _as_json(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()
